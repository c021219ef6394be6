"""Budgets: which budget a room uses, and that a run over budget fails."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from .budgets import BUDGETS_S, LATER_ROOM_S, TODAY, BudgetKeeper, Spent, budget_of, room_of
from .cpu_time import slowness


def test_rooms_have_budgets() -> None:
    tests = Path(__file__).parent
    assert room_of(tests / "faults" / "test_exit.py") == "faults"
    assert room_of(tests / "test_docs.py") == "docs"
    assert room_of(tests / "test_tier.py") == "the project"
    assert budget_of("faults") == budget_of("the project") == ("rooms of the first nine issues", 390)
    assert budget_of("of tomorrow") == ("of tomorrow", LATER_ROOM_S)


def test_the_page_shows_the_same_budgets() -> None:
    page = Path(__file__).parents[1] / "CONTRIBUTING.md"
    rows = re.findall(r"^\| [^|]+ \| (?:`tests/(\w+)`)?[^|]* \| (\d+) \|$", page.read_text(), re.MULTILINE)
    shown = {room or TODAY: float(seconds) for room, seconds in rows}
    assert shown == {room: seconds for room, seconds in BUDGETS_S.items() if math.isfinite(seconds)}


@pytest.mark.parametrize(("cpu_s", "is_over"), [(67, False), (69, True)])
@pytest.mark.parametrize("slow", [1.0, 2.0])
def test_what_is_taken_is_compared_at_the_usual_speed(
    pytestconfig: pytest.Config, cpu_s: float, is_over: bool, slow: float
) -> None:
    keeper = BudgetKeeper(lambda: 0.0, is_enforced=True)
    keeper._spent = [Spent("docs", "one", 1.0, cpu_s / 2 * slow, slow)] * 2
    lines = keeper.over_budget()
    assert bool(lines) == is_over and all("docs" in line and "68" in line for line in lines)

    class Session:
        config = pytestconfig
        exitstatus: int = pytest.ExitCode.OK

    session = Session()
    keeper.pytest_sessionfinish(session)
    assert session.exitstatus == (pytest.ExitCode.TESTS_FAILED if is_over else pytest.ExitCode.OK)


def test_a_machine_is_never_called_faster_than_usual() -> None:
    assert slowness() >= 1.0
