"""Run contenders in the calling processes: every rank makes a `Team` and runs the same round loop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from hocket.errors import InvalidArgument
from hocket.measure.contender import Contender, Key, sample
from hocket.measure.core_factor import kernel_seconds
from hocket.measure.windows import first_window_s, sample_windows

Barrier = Callable[[], object]
Gather = Callable[[list[float]], list[list[float]]]


def gather_over(all_gather: Callable[[Any, Any], object], num_ranks: int) -> Gather:
    """Return the `gather` of a `Team`, given the `all_gather` of a communicator."""
    import numpy as np

    def gather(values: list[float]) -> list[list[float]]:
        out = np.empty((num_ranks, len(values)))
        all_gather(out, np.array(values))
        return [list(map(float, row)) for row in out]

    return gather


class Team:
    """The `Runner` of a program whose ranks all hold all contenders.

    Args:
        contenders: The same names in the same order on all ranks.
        rank: This process's rank.
        barrier: Returns when all ranks have called it. It should not spin for long: a rank that spins while another
            one runs the compute kernel alone changes the core factor.
        gather: Takes this rank's values and returns all ranks' values, by rank, on every rank.
        clock: Returns seconds; tests pass their own.
        kernel: Returns the seconds of the compute kernel on this rank; tests pass their own.
        settle: Called by all ranks before each sample of calls that are timed one by one, to synchronise their clocks.
        num_cpus: Number of CPUs that the ranks may use together; None: computed from the ranks' CPU sets.

    Raises:
        InvalidArgument: Two contenders have the same case and name.

    Examples:
        >>> contender = hk.measure.Contender.of_call("barrier", "hocket", comm.barrier)
        >>> team = hk.measure.Team([contender], comm.rank, comm.barrier, comm.all_gather_object)
        >>> len(team.run(contender.key, iterations=10))
        2
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        rank: int = 0,
        barrier: Barrier = lambda: None,
        gather: Gather = lambda values: [values],
        *,
        clock: Callable[[], float] = time.perf_counter,
        kernel: Callable[[], float] = kernel_seconds,
        settle: Callable[[], object] = lambda: None,
        num_cpus: int | None = None,
    ) -> None:
        self._by_key = {contender.key: contender for contender in contenders}
        if len(self._by_key) != len(contenders):
            names = ", ".join(f"{each.case} {each.name}" for each in contenders)
            raise InvalidArgument(f"contenders must differ in case or name, not {names}")
        self.contenders = tuple(self._by_key)
        self._rank = rank
        self._barrier = barrier
        self._gather = gather
        self._clock = clock
        self._kernel = kernel
        self._settle = settle
        cpus = os.sched_getaffinity(0)
        ranks = gather([float(os.getpid()), float(len(cpus)), float(min(cpus))])
        self.pids = tuple(int(pid) for pid, _count, _first in ranks)
        self.num_ranks = len(self.pids)
        # Either each rank is bound to its own CPU, or all ranks may use the same CPUs.
        seen = max(max(int(count) for _pid, count, _first in ranks), len({first for _pid, _count, first in ranks}))
        self.num_cpus = num_cpus or seen

    def run(self, contender: Key, iterations: int) -> list[float]:
        """Return the seconds of each rank."""
        seconds = sample(self._by_key[contender], iterations, self._barrier, self._clock)
        return [values[0] for values in self._gather([seconds])]

    def run_windows(self, contender: Key, count: int, period_s: float) -> list[list[float]]:
        """Return the seconds of each call on each rank; the ranks must share one clock."""
        self._barrier()
        self._settle()
        start_s = first_window_s(self.agree(self._clock()), period_s, count)
        of_case = self._by_key[contender]
        return self._gather(sample_windows(of_case, start_s, period_s, count, lambda: None, self._clock))

    def compute(self, ranks: tuple[int, ...]) -> list[float]:
        """Return the seconds of the compute kernel on each of `ranks`, in their order."""
        self._barrier()
        seconds = self._kernel() if self._rank in ranks else 0.0
        by_rank = self._gather([seconds])
        return [by_rank[rank][0] for rank in ranks]

    def agree(self, value: float) -> float:
        """Return rank 0's value."""
        return self._gather([value])[0][0]
