"""Runs contenders that live in the calling processes: every rank makes a `Team` and runs the same round loop."""

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
    """Returns the `gather` of a `Team` whose ranks have a communicator, given its all_gather of arrays."""
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
            one measures its core alone shows in the core factor.
        gather: Gets this rank's values and returns all ranks' values, by rank, on every rank.
        clock: Seconds; tests give their own.
        kernel: Seconds of the compute kernel on this rank; tests give their own.
        settle: Called by all ranks before each sample of calls that are timed one by one, so that their clocks agree.
        num_cpus: How many CPUs the ranks may use together; None asks the ranks.

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
            raise InvalidArgument("two contenders have the same case and name")
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
        # Ranks are either bound to a CPU each, or free on the same CPUs.
        seen = max(max(int(count) for _pid, count, _first in ranks), len({first for _pid, _count, first in ranks}))
        self.num_cpus = num_cpus or seen

    def run(self, contender: Key, iterations: int) -> list[float]:
        """Seconds that each rank took."""
        seconds = sample(self._by_key[contender], iterations, self._barrier, self._clock)
        return [values[0] for values in self._gather([seconds])]

    def run_windows(self, contender: Key, count: int, period_s: float) -> list[list[float]]:
        """Seconds that each call took on each rank; the ranks' clocks have to be the same one."""
        self._barrier()
        self._settle()
        start_s = first_window_s(self.agree(self._clock()), period_s, count)
        of_case = self._by_key[contender]
        return self._gather(sample_windows(of_case, start_s, period_s, count, lambda: None, self._clock))

    def compute(self, ranks: tuple[int, ...]) -> list[float]:
        """Seconds of the compute kernel on each of `ranks`, by their order."""
        self._barrier()
        seconds = self._kernel() if self._rank in ranks else 0.0
        by_rank = self._gather([seconds])
        return [by_rank[rank][0] for rank in ranks]

    def agree(self, value: float) -> float:
        """Rank 0's value."""
        return self._gather([value])[0][0]
