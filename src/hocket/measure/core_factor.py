"""The core factor: the number of full cores that the ranks have together at the moment.

Two virtual CPUs may be two cores, two threads of one core, or less when other virtual machines are busy. This changes
by the minute.
"""

from __future__ import annotations

import math
import time

from hocket.measure.runner import Runner

_KERNEL_STEPS = 100_000  # about 5 ms: long against a wake-up, short against a round
_FIRST_RUNS = 2  # of each rank alone before the first round: one disturbed run would spoil that round's factor


def kernel_seconds() -> float:
    """Run the compute kernel once: integer work in registers and the first-level cache, no threads, no memory traffic.

    Returns:
        The seconds of the run.
    """
    start = time.perf_counter()
    total = 0
    for step in range(_KERNEL_STEPS):
        total = (total * 31 + step) & 0xFFFFFFF
    return time.perf_counter() - start


class CoreProbe:
    """Measure the core factor repeatedly, on as many ranks as CPUs, against the best time of each rank alone.

    The best time counts, because other programs' work during a run alone would make the core factor too large.

    Examples:
        >>> team = hk.measure.Team([hk.measure.Contender.of_call("16 B", "sum", lambda: sum([1, 2]))])
        >>> probe = hk.measure.CoreProbe(team)
        >>> probe.measure() > 0  # about 1.0: one rank has one core
        True
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._ranks = tuple(range(min(runner.num_ranks, runner.num_cpus)))
        self._alone_s = [math.inf] * len(self._ranks)
        for _ in range(_FIRST_RUNS):
            self._time_alone()

    def measure(self) -> float:
        """Run the compute kernel on each rank alone, then on all ranks at once.

        Returns:
            The sum over ranks of best time alone / time together: 2.0 for two ranks on two full cores, 1.0 for two
            ranks on one core.
        """
        self._time_alone()
        together = self._runner.compute(self._ranks)
        return sum(a / t for a, t in zip(self._alone_s, together, strict=True))

    def _time_alone(self) -> None:
        alone = (self._runner.compute((rank,))[0] for rank in self._ranks)
        self._alone_s = [min(pair) for pair in zip(self._alone_s, alone, strict=True)]
