"""Clocks of different processes and hosts, compared with a bound of the error."""

from hocket.clock.line import ClockLine
from hocket.clock.origin import ClockOrigin, clock_origin
from hocket.clock.reading import ClockReading, best_reading
from hocket.clock.server import ClockServer, ask_clock

__all__ = [
    "ClockLine",
    "ClockOrigin",
    "ClockServer",
    "ClockReading",
    "ask_clock",
    "best_reading",
    "clock_origin",
]
