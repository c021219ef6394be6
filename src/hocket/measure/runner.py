"""The interface between the round loop and the processes with the contenders."""

from __future__ import annotations

from typing import Protocol

from hocket.measure.contender import Key


class Runner(Protocol):
    """Runs contenders on all ranks; every method returns equal values in all processes that run the round loop.

    Examples:
        >>> contender = hk.measure.Contender.of_call("16 B", "sum", lambda: sum([1, 2]))
        >>> runner: hk.measure.Runner = hk.measure.Team([contender])
        >>> runner.num_ranks, len(runner.run(contender.key, iterations=10))
        (1, 1)
    """

    @property
    def num_ranks(self) -> int:
        """Number of ranks of each sample."""

    @property
    def num_cpus(self) -> int:
        """Number of CPUs that the ranks may use together."""

    @property
    def contenders(self) -> tuple[Key, ...]:
        """All contenders, in an order equal on all ranks."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Processes whose CPU time, with that of their descendants, counts as ours."""

    def run(self, contender: Key, iterations: int) -> list[float]:
        """Return the seconds of `iterations` iterations on each rank."""

    def run_windows(self, contender: Key, count: int, period_s: float) -> list[list[float]]:
        """Return the seconds of each of `count` calls, by rank; see `hocket.measure.windows`."""

    def compute(self, ranks: tuple[int, ...]) -> list[float]:
        """Return the seconds of the compute kernel on each of `ranks`, which run it at once while the others idle."""

    def agree(self, value: float) -> float:
        """Return one common value for all ranks, from the value that each rank measured."""
