"""One clock for ranks on several hosts: that of rank 0, as every host knows it.

Processes of one host share its monotonic clock. Of the other hosts one rank asks rank 0 for the time, several times,
and the answer that came back the soonest counts: when it was given is known to half of the time that it took.

Reference: Cristian, Probabilistic Clock Synchronization (Distributed Computing 3, 1989). Clocks of hosts drift by some
microseconds a second; `settle` is called before each sample, which takes milliseconds, so that no drift is modelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hocket.measure.team import Gather

_QUESTIONS = 16


class SharedClock:
    """Seconds on rank 0's clock.

    Args:
        rank: this process's rank.
        hosts: of each rank, a name of its host, the same on all ranks.
        send: gives a number to a rank.
        recv: returns the number that a rank sends.
        gather: as of `Team`.
        clock: this host's seconds; tests give their own.

    Attributes:
        error_s: how far from rank 0's clock it may be, on any rank, as `settle` found; 0 on one host.
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
        """Compare the clocks again; called by all ranks."""
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
        """How much rank 0's clock is ahead of this one, and how wrong that may be."""
        answers = []
        for _ in range(_QUESTIONS):
            asked_s = self._clock()
            self._send(0.0, 0)
            theirs_s = self._recv(0)
            answered_s = self._clock()
            answers.append(((answered_s - asked_s) / 2, theirs_s - (asked_s + answered_s) / 2))
        error_s, offset_s = min(answers)
        return offset_s, error_s
