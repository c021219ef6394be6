"""The examples in the docstrings of public names give what they say."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any

import pytest

import hocket as hk

from .public import ROOMS, documented, examples_of, needs_two_ranks, public_names, run


def examples_by_name(room: str) -> dict[str, doctest.DocTest]:
    """The examples of a room, each once, by the name of what they are of."""
    found: dict[str, doctest.DocTest] = {}
    seen = set()
    for name, each in public_names((room,)).items():
        for whose, what in documented(name, each):
            test = examples_of(whose, what)
            if test.examples and test.docstring not in seen:
                seen.add(test.docstring)
                found[whose] = test
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_has_an_example(room: str) -> None:
    without = [name for name, each in public_names((room,)).items() if not examples_of(name, each).examples]
    assert not without, f"no example in the docstrings of {without}"


@pytest.mark.parametrize("room", ROOMS)
def test_the_first_line_is_a_sentence(room: str) -> None:
    """Lists of names show the first line of each docstring."""
    first_lines = {
        whose: (inspect.getdoc(what) or "").partition("\n")[0]
        for name, each in public_names((room,)).items()
        if each.__module__.startswith("hocket")
        for whose, what in documented(name, each)
        if callable(what) and not type(what).__name__.startswith("nb_")  # nanobind puts signatures first
    }
    assert first_lines
    cut = {name: line for name, line in first_lines.items() if line and not line.endswith((".", ":"))}
    assert not cut


@pytest.mark.parametrize("room", ROOMS)
def test_on_one_process(room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = [run(test) for test in examples_by_name(room).values() if not needs_two_ranks(test)]
    assert not any(told), "".join(told)


def on_two_ranks(comm: Any, room: str) -> str:
    told = []
    for test in examples_by_name(room).values():
        if needs_two_ranks(test):
            with comm.dup() as own:
                told.append(run(test, own))
    return "".join(told)


@pytest.mark.parametrize("room", ROOMS)
def test_on_two_ranks(room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = hk.spawn(on_two_ranks, 2, room, timeout=100)
    assert not any(told), "\n".join(f"rank {rank}:\n{text}" for rank, text in enumerate(told) if text)
