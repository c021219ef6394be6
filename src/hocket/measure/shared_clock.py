"""One clock for ranks on several hosts: an estimate of rank 0's clock on every host.

Processes of one host share its monotonic clock. On each other host, one rank asks rank 0 for the time, several times.
The fastest answer counts (`hocket.clock.best_reading`). Clocks of hosts drift by some microseconds a second. `settle`
runs before each sample, which takes milliseconds, so the drift needs no model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hocket.clock import ClockReading, best_reading
from hocket.measure.team import Gather

_QUESTIONS = 16


class SharedClock:
    """Seconds on rank 0's clock.

    Args:
        rank: this process's rank.
        hosts: name of the host of each rank; the same on all ranks.
        send: sends a number to a rank.
        recv: returns the number that a rank sends.
        gather: as in `Team`.
        clock: returns this host's seconds; tests pass their own.

    Attributes:
        error_s: largest possible error against rank 0's clock, over all ranks, by the last `settle`; 0 on one host.
    """

    def __init__(
        self,
        rank: int,
        hosts: Sequence[str],
        send: Callable[[float, int], object],
        recv: Callable[[int], float],
        gather: Gather,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._rank, self._send, self._recv, self._gather, self._clock = rank, send, recv, gather, clock
        leaders = {host: number for number, host in reversed(list(enumerate(hosts)))}  # the first rank of each
        self._leader = leaders[hosts[rank]]
        self._askers = sorted(each for each in leaders.values() if each)
        self._offset_s = 0.0
        self.error_s = 0.0

    def __call__(self) -> float:
        return self._clock() + self._offset_s

    def settle(self) -> None:
        """Compare the clocks again; all ranks call it."""
        if not self._askers:
            return
        offset_s, error_s = 0.0, 0.0
        if self._rank in self._askers:
            offset_s, error_s = self._ask()
        elif self._rank == 0:
            for asker in self._askers:
                for _ in range(_QUESTIONS):
                    self._recv(asker)
                    self._send(self._clock(), asker)
        found = self._gather([offset_s, error_s])
        self._offset_s = found[self._leader][0]
        self.error_s = max(error for _, error in found)

    def _ask(self) -> tuple[float, float]:
        """Return by how many seconds rank 0's clock is ahead of this one, and the largest error of that."""
        readings = []
        for _ in range(_QUESTIONS):
            asked_s = self._clock()
            self._send(0.0, 0)
            theirs_s = self._recv(0)
            readings.append(ClockReading(asked_s, theirs_s, self._clock()))
        best = best_reading(readings)
        return best.ahead, best.error
