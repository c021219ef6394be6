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
    """Measures the core factor again and again, against the best that each rank has shown alone.

    The best, since others' work during the time alone would make the ranks look as if they had more cores together.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._ranks = tuple(range(runner.num_ranks))
        self._alone_s = [math.inf] * runner.num_ranks

    def measure(self) -> float:
        """Runs the compute kernel on each rank alone, then on all ranks at once.

        Returns:
            The sum over ranks of best time alone / time together: 2.0 for two ranks on two full cores, 1.0 for two on
            one.
        """
        alone = [self._runner.compute((rank,))[0] for rank in self._ranks]
        together = self._runner.compute(self._ranks)
        self._alone_s = [min(pair) for pair in zip(self._alone_s, alone, strict=True)]
        return sum(a / t for a, t in zip(self._alone_s, together, strict=True))
