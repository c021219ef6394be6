"""Methods of a communicator about the clock of its rank, which is simulated where ranks are virtual."""

from __future__ import annotations

import math
import time
from typing import Protocol

from hocket import _native
from hocket.errors import InvalidArgument


class HasClock(Protocol):
    """What is needed of a communicator."""

    @property
    def is_virtual(self) -> bool: ...


def wtime(comm: HasClock) -> float:
    """Return the seconds of this rank's clock, to tell how long something took; a virtual rank's start at zero."""
    return _native.virtual_now_s() if comm.is_virtual else time.perf_counter()


def compute(comm: HasClock, seconds: float) -> None:
    """Spend time as a computation would: a processor is kept busy; a virtual rank's clock goes on.

    Args:
        seconds: 0 or more.

    Raises:
        InvalidArgument: it is not.
    """
    if not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise InvalidArgument(f"seconds must be a number of 0 or more, not {seconds!r}")
    if comm.is_virtual:
        _native.pass_virtual_time(float(seconds))
        return
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
