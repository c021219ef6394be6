"""How much another host may send of what it records while the run goes on, and when.

The program has the network and the disks first. So the first host asks, and what is not asked for is not sent:

- Answers take at most a fifth of the time while somebody follows the run, else a twentieth, whatever makes them slow:
  the network, the disk here, or the host there.
- All hosts together send at most `MOST_NBYTES_S`.
- The size of an answer is doubled while answers are short, and halved when one takes long: on a slow network answers
  are small and still come often.

What is behind is sent later, at the latest when the run is over.
"""

from __future__ import annotations

import math

from hocket.boot.sealed import ProtocolError

MOST_NBYTES_S = 16 << 20
LEAST_NBYTES = 16 << 10
"""Of an answer; with very many hosts each is asked more rarely instead."""
_FIRST_NBYTES = 128 << 10
_INTERVAL_S, _FOLLOWED_INTERVAL_S = 1.0, 0.25
_MOST_SHARE, _FOLLOWED_SHARE = 0.05, 0.2
_MOST_PAUSE_S = 30.0
_ANSWER_S = 0.1
_MOST_OTHER_NBYTES = 32 << 20
"""Of the description and of heads in one answer."""


class GrowthPace:
    """The pace of one host; times are those of `time.monotonic`.

    Examples:
        >>> from hocket.observe.growth_pace import GrowthPace
        >>> pace = GrowthPace()
        >>> pace.ask(10.0, num_hosts=1, is_followed=True) > 0
        True
        >>> pace.ask(10.1, num_hosts=1, is_followed=True)  # it has not answered yet
        0
    """

    def __init__(self) -> None:
        self._nbytes = _FIRST_NBYTES
        self._asked_s = -math.inf
        self._took_s = 0.0
        """For the last answer."""
        self._left_nbytes: int | None = None
        """What it may still send of the answer that is awaited; None: none is."""
        self._other_nbytes = 0
        self._is_over = False

    def ask(self, now_s: float, num_hosts: int, *, is_followed: bool) -> int:
        """Return how many bytes to ask for now; 0: none.

        Args:
            now_s: the time.
            num_hosts: how many hosts send.
            is_followed: whether somebody follows the run.
        """
        interval_s = _FOLLOWED_INTERVAL_S if is_followed else _INTERVAL_S
        interval_s = max(interval_s, num_hosts * LEAST_NBYTES / MOST_NBYTES_S)
        # Who begins to follow does not wait for the longer pause.
        share = _FOLLOWED_SHARE if is_followed else _MOST_SHARE
        pause_s = min(self._took_s / share, self._took_s + _MOST_PAUSE_S)
        if self._is_over or self._left_nbytes is not None or now_s < self._asked_s + max(interval_s, pause_s):
            return 0
        self._asked_s = now_s
        of_one = int(MOST_NBYTES_S * min(interval_s, _INTERVAL_S) / max(num_hosts, 1))
        self._nbytes = max(min(self._nbytes, of_one), LEAST_NBYTES)
        self._left_nbytes, self._other_nbytes = self._nbytes, self._nbytes + _MOST_OTHER_NBYTES
        return self._nbytes

    def take(self, nbytes: int) -> None:
        """Note that files grow by so many bytes of an answer.

        Raises:
            ProtocolError: they were not asked for.
        """
        if self._left_nbytes is None or nbytes > self._left_nbytes:
            raise ProtocolError(f"{nbytes} bytes that were not asked for")
        self._left_nbytes -= nbytes

    def take_other(self, nbytes: int) -> None:
        """Note that so many bytes of an answer come for something else.

        Raises:
            ProtocolError: they were not asked for, or are too many.
        """
        self.take(0)
        if nbytes > self._other_nbytes:
            raise ProtocolError(f"{nbytes} bytes that were not asked for")
        self._other_nbytes -= nbytes

    def end_answer(self, now_s: float, *, has_more: bool) -> None:
        """Note that an answer has come.

        Args:
            now_s: the time.
            has_more: whether more had been there to send.

        Raises:
            ProtocolError: nothing was asked for.
        """
        self.take(0)
        took_s = now_s - self._asked_s
        if took_s > _ANSWER_S:
            self._nbytes //= 2
        elif has_more and took_s < _ANSWER_S / 2:
            self._nbytes *= 2
        self._took_s = took_s
        self._left_nbytes = None

    def end(self) -> None:
        """Ask no more: the host sends all that is left."""
        self._is_over, self._left_nbytes = True, None
