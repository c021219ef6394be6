"""Suggestions for unknown names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hocket as hk
from hocket.backends import backends_among
from hocket.collectives import find_algorithm
from hocket.pipeline import build
from hocket.suggestions import did_you_mean

from .naming import raises


@pytest.mark.parametrize(
    ("name", "meant"),
    [("summ", "'sum'"), ("SUM", "'sum'"), ("all-reduce", "'all_reduce'"), ("x", ""), (3, "")],
)
def test_likeness(name: object, meant: str) -> None:
    found = did_you_mean(name, ["sum", "prod", "all_reduce"])
    assert meant in found and bool(meant) == bool(found)


def test_registries_say_what_was_meant() -> None:
    with raises(hk.BackendUnavailable, names="'gloo'"):
        backends_among(["glooo"])
    with raises(hk.InvalidArgument, names="'all_reduce'"):
        find_algorithm("allreduce", "ring")
    with raises(hk.InvalidArgument, names="'ring'"):
        find_algorithm("all_reduce", "rings")
    with raises(hk.InvalidArgument, names="'gpipe'"):
        build("gpip", 2, 2)


@pytest.mark.parametrize(
    ("call", "wrong", "meant"),
    [
        (lambda: hk.init(backend="shm"), "'backend'", "'backends'"),
        (lambda: hk.init(time_out=3), "'time_out'", "'timeout'"),
        (lambda: hk.simulate(print, 2, move_data=True), "'move_data'", "'moves_data'"),
    ],
)
def test_keywords_that_do_not_exist(call: Callable[[], object], wrong: str, meant: str) -> None:
    with raises(hk.InvalidType, names=(wrong, meant)):
        call()
