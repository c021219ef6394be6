"""Schedules as JSON."""

from __future__ import annotations

import json
from typing import Any

from hocket.errors import HocketError, InvalidSchedule
from hocket.pipeline.formats._tokens import HEAD, read_action
from hocket.pipeline.placement import Placement
from hocket.pipeline.schedule import PipelineSchedule

ENDING = ".json"


def dump(schedule: PipelineSchedule) -> str:
    """Return a schedule as JSON, one rank per line, with actions as in the text format."""
    head: dict[str, Any] = {
        "format": HEAD.text,
        "name": schedule.name,
        "num_micro_batches": schedule.num_micro_batches,
        "num_steps": schedule.num_steps,
        "parameters": dict(schedule.parameters),
        "placement": schedule.placement.ranks,
        "edges": schedule.edges,
    }
    lines = ",\n".join(f" {json.dumps([str(action) for action in actions])}" for actions in schedule.actions)
    body = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, default=_plain)}" for key, value in head.items())
    return f'{{{body},\n"actions": [\n{lines}\n]}}\n'


def _plain(value: Any) -> Any:
    """Convert a NumPy number to a Python number."""
    return value.item()


def load(text: str, place: str = "the schedule") -> PipelineSchedule:
    """Read a schedule that `dump` wrote.

    Raises:
        InvalidSchedule: the text is not a valid schedule; the error names the place and the reason.
    """
    _, content = HEAD.parse(text, place)
    for name, is_valid, expected in (
        ("name", isinstance(content.get("name"), str), "a string"),
        ("num_micro_batches", type(content.get("num_micro_batches")) is int, "an integer"),
        ("num_steps", type(content.get("num_steps")) is int, "an integer"),
        ("parameters", isinstance(content.get("parameters"), dict), "an object"),
        ("placement", _is_table(content.get("placement"), int), "a list of ranks for each pipe"),
        ("edges", _is_table(content.get("edges"), int, 2), "a list of pairs of stages"),
        ("actions", _is_table(content.get("actions"), str), "a list of actions for each rank"),
    ):
        if not is_valid:
            raise InvalidSchedule(f"{place}: {name} must be {expected}, got {str(content.get(name))[:60]}")
    rows = [
        [read_action(token, f"{place}, rank {rank}, action {index}") for index, token in enumerate(tokens)]
        for rank, tokens in enumerate(content["actions"])
    ]
    try:
        schedule = PipelineSchedule(
            content["name"],
            Placement(tuple(tuple(ranks) for ranks in content["placement"])),
            content["num_micro_batches"],
            rows,
            tuple((first, second) for first, second in content["edges"]),
            content["num_steps"],
            content["parameters"],
        )
        schedule.columns  # noqa: B018  validates every action
    except HocketError as error:
        raise InvalidSchedule(f"{place}: {error}") from None
    return schedule


def _is_table(rows: Any, kind: type, width: int | None = None) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, list) and width in (None, len(row)) and all(type(each) is kind for each in row) for row in rows
    )
