"""120 mistakes: each is told in one line that names what was wrong and what would be right, and leaves nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ..naming import assert_names
from . import page
from .commands import COMMANDS
from .mistake import Mistake, Outcome
from .outcomes import of_command, of_statements
from .statements import ALONE, BETWEEN

pytestmark = pytest.mark.timeout(120)
_MOST_CHARACTERS = 500
_ALONE = [each for group in ALONE.values() for each in group]
_BETWEEN = [each for group in BETWEEN.values() for each in group]
_COMMANDS = [each for group in COMMANDS.values() for each in group]


def of_each(mistakes: list[Mistake]) -> pytest.MarkDecorator:
    ids = [f"{number} {each.written}"[:60] for number, each in enumerate(mistakes)]
    return pytest.mark.parametrize("number", range(len(mistakes)), ids=ids)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[list[Outcome]]:
    return of_statements(_ALONE, 1, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> list[list[Outcome]]:
    return of_statements(_BETWEEN, 2, tmp_path_factory.mktemp("between"))


def check(mistake: Mistake, outcome: Outcome) -> None:
    assert outcome.kind == mistake.kind, outcome
    assert_names(outcome.message, *mistake.names)
    assert "\n" not in outcome.message and len(outcome.message) <= _MOST_CHARACTERS, outcome.message


@of_each(_ALONE)
def test_statement(alone: list[list[Outcome]], number: int) -> None:
    check(_ALONE[number], alone[number][0])


@of_each(_BETWEEN)
def test_statement_on_two_ranks(between: list[list[Outcome]], number: int) -> None:
    for rank in _BETWEEN[number].ranks:
        check(_BETWEEN[number], between[number][rank])


@of_each(_COMMANDS)
def test_command(tmp_path: Path, number: int) -> None:
    mistake = _COMMANDS[number]
    outcome = of_command(mistake, tmp_path)
    assert outcome.kind == mistake.kind, outcome.message
    assert_names(outcome.message, *mistake.names)
    assert outcome.left == ()
    if mistake.kind == 2:
        assert "\n" not in outcome.message, outcome.message
    if (
        "Traceback" in outcome.message and "hocket.errors" in outcome.message
    ):  # ends in the user's line, not in hocket's
        frames = [line for line in outcome.message.splitlines() if line.startswith('  File "')]
        assert "program.py" in frames[-1] or mistake.written.startswith(("WORLD_SIZE", "RANK")), outcome.message


def test_there_are_many() -> None:
    assert len(_ALONE) + len(_BETWEEN) + len(_COMMANDS) >= 120


def test_every_class_of_errors_has_a_remedy() -> None:
    assert set(page.REMEDIES) == set(page.error_classes())


def test_the_page_says_what_is_said(alone: list[list[Outcome]], between: list[list[Outcome]], tmp_path: Path) -> None:
    outcomes = {each: told[0] for each, told in zip(_ALONE, alone, strict=True)}
    outcomes |= {each: told[each.ranks[0]] for each, told in zip(_BETWEEN, between, strict=True)}
    for number, each in enumerate(_COMMANDS):
        if page.is_shown(each):
            folder = tmp_path / str(number)
            folder.mkdir()
            outcomes[each] = of_command(each, folder)
    made = page.make(outcomes)
    assert made == page.PAGE.read_text(), (
        f"{page.PAGE.name} is old: make it anew by {sys.executable} tools/errors_page.py"
    )
