"""A barrier after which each rank runs on its own CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import repeat

from hocket.measure.team import Barrier, Gather

_BURST = 8  # barriers
_LONGEST_SETTLING_S = 0.01


class SettlingBarrier:
    """Bursts of barriers, until one is about as fast as the fastest so far.

    Ranks that slept during the previous sample may wake on the same CPU and share it for as long as a sample lasts,
    until the scheduler moves one of them.

    Args:
        barrier: a barrier that spins.
        gather: as in `Team`.
        clock: returns seconds; tests pass their own.
    """

    def __init__(self, barrier: Barrier, gather: Gather, clock: Callable[[], float] = time.perf_counter) -> None:
        self._barrier = barrier
        self._gather = gather
        self._clock = clock
        self._fastest_s = math.inf

    def __call__(self) -> None:
        waited_s = 0.0
        while waited_s < _LONGEST_SETTLING_S:
            start = self._clock()
            for _ in repeat(None, _BURST):
                self._barrier()
            burst_s = max(values[0] for values in self._gather([self._clock() - start]))
            self._fastest_s = min(self._fastest_s, burst_s)
            if burst_s < 2 * self._fastest_s:
                return
            waited_s += burst_s
