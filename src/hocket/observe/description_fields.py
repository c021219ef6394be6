"""Fields of the description of a run, from JSON: each has the type and the range that tables can hold, or a
TypeError or ValueError names it."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from math import isfinite
from typing import Any, TypeVar

from hocket.clock import ClockReading
from hocket.observe.batch import BatchTask, QueuedJob
from hocket.observe.run_clock import Anchor
from hocket.typed_json import record_from

_T = TypeVar("_T", BatchTask, QueuedJob)

_MOST = 1 << 63
_MOST_EXIT_CODE = 1 << 31
_MOST_UNIX_S = 253_402_300_800
"""The year 10,000."""
_NUM_IN_LOOK = 6
_MOST_HOST = 1024


def host_from(content: object) -> str:
    """Return the name of a host."""
    is_name = isinstance(content, str) and len(content) <= _MOST_HOST
    if not isinstance(content, str) or not is_name or any("\ud800" <= each <= "\udfff" for each in content):
        raise ValueError(f"host must be a text of at most {_MOST_HOST} characters, not {content!r:.80}")
    return content


def unix_seconds_from(content: object, field: str) -> float:
    """Return seconds since 1970."""
    if type(content) not in (int, float) or not 0 <= content < _MOST_UNIX_S:  # type: ignore[operator]
        raise ValueError(f"{field} must be seconds since 1970, not {content!r:.80}")
    return float(content)  # type: ignore[arg-type]


def exit_code_from(content: object) -> int | None:
    """Return the exit code of a command; None: it goes on."""
    if content is None:
        return None
    if type(content) is not int or not -_MOST_EXIT_CODE <= content < _MOST_EXIT_CODE:
        raise ValueError(f"exit_code must be an integer of 32 bits or null, not {content!r:.80}")
    return content


def counts_from(content: object, field: str) -> dict[str, dict[str, int]]:
    """Return a count of each process and ring."""
    return {
        name: {ring: _count(each, f"{field} of {ring} of {name}") for ring, each in _object(rings, field).items()}
        for name, rings in _object(content, field).items()
    }


def looks_from(content: object, field: str) -> dict[str, list[int]]:
    """Return six integers of each process; one that was read while it was changed may be negative."""
    found: dict[str, list[int]] = {}
    for name, numbers in _object(content, field).items():
        if not isinstance(numbers, list) or len(numbers) != _NUM_IN_LOOK:
            raise ValueError(f"{field} of {name} must be {_NUM_IN_LOOK} integers, not {numbers!r:.80}")
        found[name] = [_count(each, f"{field} of {name}", least=1 - _MOST) for each in numbers]
    return found


def records_from(kind: type[_T], content: object, field: str) -> dict[str, _T]:
    """Return a record of each name; their integers are counts."""
    found = {name: record_from(kind, each) for name, each in _object(content, field).items()}
    for name, record in found.items():
        for each in fields(record):
            if isinstance(number := getattr(record, each.name), int):
                _count(number, f"{each.name} in {field} of {name}")
    return found


def anchors_from(content: object) -> tuple[Anchor, ...]:
    """Return pairs of ticks and nanoseconds, oldest first."""
    anchors = tuple((_count(ticks, "anchors"), _count(ns, "anchors")) for ticks, ns in _rows(content, 2, "anchors"))
    if len(anchors) < 2 or any(before >= after for before, after in pairwise(anchors)):
        raise ValueError("anchors must be at least two, in the order of time")
    return anchors


def readings_from(content: object) -> tuple[tuple[float, float, float], ...]:
    """Return comparisons of clocks, oldest first."""
    readings = tuple(
        (_ns(asked), _ns(theirs), _ns(answered)) for asked, theirs, answered in _rows(content, 3, "readings")
    )
    ordered = [ClockReading(*reading).at for reading in readings]
    if ordered != sorted(ordered):
        raise ValueError("readings, comparisons of clocks, must be in the order of time")
    return readings


def command_from(content: object) -> tuple[str, ...]:
    """Return a program and its arguments."""
    if not isinstance(content, list) or not all(isinstance(each, str) for each in content):
        raise TypeError(f"command must be a list of texts, not {content!r:.80}")
    return tuple(content)


def _object(content: object, field: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise TypeError(f"{field} must be an object, not {content!r:.80}")
    return content


def _rows(content: object, width: int, field: str) -> list[list[Any]]:
    if not isinstance(content, list) or not all(isinstance(each, list) and len(each) == width for each in content):
        raise TypeError(f"{field} must be a list of lists of {width} numbers, not {content!r:.80}")
    return content


def _count(content: object, field: str, least: int = 0) -> int:
    if type(content) is not int or not least <= content < _MOST:
        raise ValueError(f"{field} must be an integer from {least} to {_MOST - 1}, not {content!r:.80}")
    return content


def _ns(content: object) -> float:
    if type(content) not in (int, float) or not isfinite(content) or abs(content) >= _MOST:  # type: ignore[arg-type]
        raise ValueError(f"readings must be nanoseconds of a clock, not {content!r:.80}")
    return float(content)  # type: ignore[arg-type]
