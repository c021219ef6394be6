"""How many full cores the ranks have together, now.

Two virtual CPUs may be two cores, two threads of one core, or less when neighbours work: it changes by the minute.
"""

from __future__ import annotations

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


def core_factor(runner: Runner) -> float:
    """Measures the compute kernel on each rank alone, then on all ranks at once.

    Returns:
        The sum over ranks of time alone / time together: 2.0 for two ranks on two full cores, 1.0 for two on one.
    """
    ranks = tuple(range(runner.num_ranks))
    alone = [runner.compute((rank,))[0] for rank in ranks]
    together = runner.compute(ranks)
    return sum(a / t for a, t in zip(alone, together, strict=True))
