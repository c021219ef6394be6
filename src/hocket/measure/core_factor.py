"""How many full cores the ranks have together, now.

Two virtual CPUs may be two cores, two threads of one core, or less when neighbours work: it changes by the minute.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.measure.runner import Runner

_KERNEL_STEPS = 100_000  # about 5 ms: long against a wake-up, short against a round
_FIRST_LOOKS = 2  # at each rank alone before the first round: one disturbed look would spoil that round's factor


def kernel_seconds() -> float:
    """Runs the compute kernel once: integer work in registers and the first-level cache, no threads, no memory traffic.

    Returns:
        Seconds it took.
    """
    start = time.perf_counter()
    total = 0
    for step in range(_KERNEL_STEPS):
        total = (total * 31 + step) & 0xFFFFFFF
    return time.perf_counter() - start


class CoreProbe:
    """Measures the core factor again and again, on as many ranks as there are CPUs, against the best of each alone.

    The best, since others' work during the time alone would make the ranks look as if they had more cores together.

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
        for _ in range(_FIRST_LOOKS):
            self._look_alone()

    def measure(self) -> float:
        """Runs the compute kernel on each rank alone, then on all of them at once.

        Returns:
            The sum over ranks of best time alone / time together: 2.0 for two ranks on two full cores, 1.0 for two on
            one.
        """
        self._look_alone()
        together = self._runner.compute(self._ranks)
        return sum(a / t for a, t in zip(self._alone_s, together, strict=True))

    def _look_alone(self) -> None:
        alone = (self._runner.compute((rank,))[0] for rank in self._ranks)
        self._alone_s = [min(pair) for pair in zip(self._alone_s, alone, strict=True)]
