"""Methods of a communicator for the clock of its rank; for virtual ranks the clock is simulated."""

from __future__ import annotations

import math
import time
from typing import Protocol

from hocket import _native
from hocket.errors import InvalidArgument


class HasClock(Protocol):
    """What these functions need of a communicator."""

    @property
    def is_virtual(self) -> bool: ...


def wtime(comm: HasClock) -> float:
    """Return this rank's clock in seconds, to measure durations; the clock of a virtual rank starts at zero.

    Examples:
        >>> begin = comm.wtime()
        >>> comm.barrier()
        >>> comm.wtime() > begin
        True
    """
    return _native.virtual_now_s() if comm.is_virtual else time.perf_counter()


def compute(comm: HasClock, seconds: float) -> None:
    """Spend time like a computation: keep a processor busy, or advance the clock of a virtual rank.

    Args:
        seconds: time to spend, 0 or more.

    Raises:
        InvalidArgument: `seconds` is negative or not a number.

    Examples:
        >>> begin = comm.wtime()
        >>> comm.compute(0.002)
        >>> comm.wtime() - begin >= 0.002
        True
    """
    if not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise InvalidArgument(f"seconds must be a number of 0 or more, not {seconds!r}")
    if comm.is_virtual:
        _native.pass_virtual_time(float(seconds))
        return
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
