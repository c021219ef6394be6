"""Schedules as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hocket.collectives.schedule import COLUMNS, Schedule, from_columns
from hocket.errors import InvalidSchedule
from hocket.versioned_json import Head, read_text

HEAD = Head("hocket schedule, version ", 1, InvalidSchedule)
_FIELDS = ("collective", "algorithm", "num_ranks", "num_blocks", "num_slots", "ports", "group_size")


def to_json(schedule: Schedule) -> str:
    """Return a schedule as JSON, one transfer per line.

    A transfer is [round, source, destination, block, source slot, destination slot, reduces].
    """
    head: dict[str, Any] = {"format": HEAD.text}
    head |= {name: getattr(schedule, name) for name in _FIELDS}
    head["parameters"] = dict(schedule.parameters)
    columns = [getattr(schedule, name).tolist() for name in COLUMNS]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in zip(*columns, strict=True))
    return f'{json.dumps(head, indent=1)[:-2]},\n "transfers": [\n{lines}\n ]\n}}\n'


def from_json(text: str, place: str = "the schedule") -> Schedule:
    """Read a schedule that `to_json` wrote, without a check of its correctness: see `verify`.

    Args:
        text: JSON.
        place: origin of the text, for error messages.

    Raises:
        InvalidSchedule: the text is not a valid schedule; the error names the place and the reason.
    """
    _, content = HEAD.parse(text, place)
    content.setdefault("group_size", content.get("num_ranks"))  # absent in the oldest files
    for name in _FIELDS:
        value = content.get(name)
        if name in ("collective", "algorithm"):
            is_valid, expected = isinstance(value, str), "a string"
        else:
            is_valid, expected = type(value) is int and 1 <= value < 1 << 31, "an integer of 1 or more"
        if not is_valid:
            raise InvalidSchedule(f"{place}: {name} must be {expected}, got {value!r}")
    if not isinstance(content.get("parameters"), dict):
        raise InvalidSchedule(f"{place}: parameters must be an object, got {content.get('parameters')!r}")
    rows = content.get("transfers")
    if not isinstance(rows, list):
        raise InvalidSchedule(f"{place}: transfers must be a list, got {str(rows)[:60]}")
    for number, row in enumerate(rows):
        numbers = row[:-1] if isinstance(row, list) else []
        if (
            len(numbers) != len(COLUMNS) - 1
            or not all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 1 << 31 for each in numbers)
            or not isinstance(row[-1], bool)
        ):
            raise InvalidSchedule(f"{place}: transfer {number} must have {', '.join(COLUMNS)}, got {row!r}")
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    schedule = from_columns(
        content["collective"],
        content["num_ranks"],
        content["num_blocks"],
        content["num_slots"],
        dict(zip(COLUMNS, columns, strict=True)),
        ports=content["ports"],
        group_size=content["group_size"],
    )
    return replace(schedule, algorithm=content["algorithm"], parameters=content["parameters"])


def load_schedule(path: str | Path) -> Schedule:
    """Read a schedule from a file.

    Raises:
        InvalidSchedule: the file cannot be read, or is not a valid schedule.
    """
    return from_json(read_text(path, InvalidSchedule), str(path))
