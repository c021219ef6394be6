"""The seam between the round loop and the processes that do the work."""

from __future__ import annotations

from typing import Protocol

from hocket.measure.contender import Key


class Runner(Protocol):
    """Runs contenders on all ranks; every method returns the same values wherever the round loop runs.

    Examples:
        >>> contender = hk.measure.Contender.of_call("16 B", "sum", lambda: sum([1, 2]))
        >>> runner: hk.measure.Runner = hk.measure.Team([contender])
        >>> runner.num_ranks, len(runner.run(contender.key, iterations=10))
        (1, 1)
    """

    @property
    def num_ranks(self) -> int:
        """How many ranks take part in each sample."""

    @property
    def num_cpus(self) -> int:
        """How many CPUs the ranks may use together."""

    @property
    def contenders(self) -> tuple[Key, ...]:
        """All contenders, in an order equal on all ranks."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes whose CPU time, with their descendants', is ours."""

    def run(self, contender: Key, iterations: int) -> list[float]:
        """Seconds that each rank took for `iterations` iterations."""

    def run_windows(self, contender: Key, count: int, period_s: float) -> list[list[float]]:
        """Seconds that each rank took for each of `count` calls, by rank; see `hocket.measure.windows`."""

    def compute(self, ranks: tuple[int, ...]) -> list[float]:
        """Seconds that each of `ranks` took for the compute kernel, all of them at once, the others idle."""

    def agree(self, value: float) -> float:
        """One value for all ranks, where each measured its own."""
