"""Every tutorial, and the guide to PyTorch, runs as it stands and prints what it says."""

from __future__ import annotations

import doctest
import os
import shlex
from pathlib import Path

import pytest

from ..program import run_python
from .tutorial import Command, read

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [*sorted((DOCS / "tutorials").glob("*.md")), DOCS / "torch.md"]  # the guide whose programs show their output
PROGRAMS = {"hocket": ["-m", "hocket.cli"], "torchrun": ["-m", "torch.distributed.run"], "python": []}
HOW = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.timeout(200)
@pytest.mark.parametrize("page", [each for each in PAGES if each.stem != "index"], ids=lambda page: page.stem)
def test_tutorial(page: Path, tmp_path: Path) -> None:
    steps = read(page)
    assert any(isinstance(step, Command) for step in steps)
    for step in steps:
        if isinstance(step, Command):
            check(step, tmp_path)
        else:
            name, content = step
            (tmp_path / name).write_text(content)


def check(command: Command, folder: Path) -> None:
    words = shlex.split(command.line)
    environment = dict(os.environ) | {"XDG_CACHE_HOME": str(folder / "cache")}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    ran = run_python(*PROGRAMS[words[0]], *words[1:], folder=folder, environment=environment, timeout_s=100)
    assert ran.returncode == command.exit_code, ran.stderr
    matches = doctest.OutputChecker().check_output
    printed = (ran.stdout, ran.stdout + ran.stderr)
    assert any(matches(command.expected, text, HOW) for text in printed), f"{command.line}\n{ran.stdout}\n{ran.stderr}"
