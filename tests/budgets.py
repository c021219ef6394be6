"""Time budgets of `make test`, room by room; CONTRIBUTING.md has the same list.

A budget is wall seconds on two cores that give 1.7 times one. Those change by the minute, so what is compared is
seconds of CPU, 1.7 for each: of this process, of the programs that tests start, and of the jobs of the fork server.
Seconds of a machine that is slowed down by others count for less (`cpu_time.slowness`, asked now and then). A run
prints what was not enough, and fails for it under `--enforce-budgets`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest

from .cpu_time import cpu_seconds, slowness

CPU_S_EACH = 1.7
TODAY = "rooms of the first nine issues"
LATER_ROOM_S = 18.0
BUDGETS_S = {
    TODAY: 390.0, "docs": 40.0, "observe": 60.0, "page": 10.0, "engines": 30.0, "dask": 120.0, "checkpoint": 40.0,
    "plan": 30.0, "network": 25.0, "bubbles": 25.0, "system": 720.0, "native": math.inf,  # mostly the builds
}  # fmt: skip
_OF_TODAY = {
    "bench", "boot", "cli", "collectives", "comm", "conformance", "examples", "faults", "keras", "measure", "memory",
    "mixing", "model", "pipeline", "prefork", "session", "sim", "torch", "trace", "train", "tune", "the project",
}  # fmt: skip
_TESTS = Path(__file__).parent
_SLOWEST = 20
_SPEED_EVERY_S = 5.0


def room_of(path: Path) -> str:
    """Return the folder of tests/ that a test file lies in, or "the project" for one that lies in tests/ itself,
    "elsewhere" for one that lies in no folder of it."""
    if not path.is_relative_to(_TESTS):
        return "elsewhere"
    folders = path.relative_to(_TESTS).parts[:-1]
    return folders[0] if folders else "docs" if path.stem == "test_docs" else "the project"


def budget_of(room: str) -> tuple[str, float]:
    """Return the room whose budget a room uses, and its seconds."""
    owner = TODAY if room in _OF_TODAY else room
    return owner, BUDGETS_S.get(owner, LATER_ROOM_S)


@dataclass(frozen=True)
class Spent:
    """Time of one test with its fixtures, and the slowness of the machine as a factor."""

    room: str
    name: str
    wall_s: float
    cpu_s: float
    slowness: float


class BudgetKeeper:
    """A pytest plugin that measures every test, prints the time of each room, and fails a run that took too long.

    Args:
        cpu_s_elsewhere: CPU seconds of processes that are neither this one nor children that it has waited for.
        is_enforced: whether going over a budget fails the run.
    """

    def __init__(self, cpu_s_elsewhere: Callable[[], float], is_enforced: bool) -> None:
        self._cpu_s_elsewhere = cpu_s_elsewhere
        self._is_enforced = is_enforced
        self._spent: list[Spent] = []
        self._slowness, self._slowness_until_s = 1.0, 0.0

    def _cpu_s(self) -> float:
        return cpu_seconds() + self._cpu_s_elsewhere()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure a test."""
        if monotonic() > self._slowness_until_s:
            self._slowness, self._slowness_until_s = slowness(), monotonic() + _SPEED_EVERY_S
        began_s, cpu_s = monotonic(), self._cpu_s()
        try:
            return (yield)
        finally:
            taken = monotonic() - began_s, self._cpu_s() - cpu_s
            self._spent.append(Spent(room_of(item.path), item.nodeid, *taken, self._slowness))

    def over_budget(self) -> list[str]:
        """Return a line for each exceeded budget."""
        taken_s: dict[tuple[str, float], float] = defaultdict(float)
        for each in self._spent:
            taken_s[budget_of(each.room)] += each.cpu_s / each.slowness
        return [
            f"{owner}: {cpu_s:.0f} s of CPU at the usual speed, of {budget_s * CPU_S_EACH:.0f} s"
            for (owner, budget_s), cpu_s in taken_s.items()
            if cpu_s > budget_s * CPU_S_EACH
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run whose tests passed and took too long."""
        if self._is_enforced and self.over_budget() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the seconds of rooms and of the slowest tests, where any ran."""
        if not self._spent:
            return
        write = terminalreporter.write_line
        terminalreporter.section("seconds by room: wall, CPU, tests")
        rooms: dict[str, list[Spent]] = defaultdict(list)
        for each in self._spent:
            rooms[each.room].append(each)
        for room, tests in [*sorted(rooms.items()), ("all", self._spent)]:
            wall_s, cpu_s = sum(each.wall_s for each in tests), sum(each.cpu_s for each in tests)
            write(f"{room:<14}{wall_s:8.1f}{cpu_s:8.1f}{len(tests):7d}")
        slownesses = sorted(each.slowness for each in self._spent) or [1.0]
        write(f"the machine was {slownesses[len(slownesses) // 2]:.2f} times as slow as usual")
        terminalreporter.section(f"the {_SLOWEST} slowest tests: wall, CPU")
        for each in sorted(self._spent, key=lambda spent: -spent.wall_s)[:_SLOWEST]:
            write(f"{each.wall_s:8.1f}{each.cpu_s:8.1f}  {each.name}")
        for line in self.over_budget() if self._is_enforced else ():
            terminalreporter.write_line(f"over budget: {line}", red=True)
