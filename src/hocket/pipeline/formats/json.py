"""Schedules as JSON, for programs."""

from __future__ import annotations

import json
from typing import Any

from hocket.errors import HocketError, InvalidSchedule
from hocket.pipeline.formats._tokens import HEAD, read_action
from hocket.pipeline.placement import Placement
from hocket.pipeline.schedule import PipelineSchedule

ENDING = ".json"


def dump(schedule: PipelineSchedule) -> str:
    """Return a schedule as JSON, one rank a line; actions are words as in the text form."""
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
    """NumPy's numbers as Python's."""
    return value.item()


def load(text: str, place: str = "the schedule") -> PipelineSchedule:
    """Read what `dump` wrote.

    Raises:
        InvalidSchedule: it is no schedule; says where and why.
    """
    _, content = HEAD.parse(text, place)
    for name, is_right, words in (
        ("name", isinstance(content.get("name"), str), "a word"),
        ("num_micro_batches", type(content.get("num_micro_batches")) is int, "a number"),
        ("num_steps", type(content.get("num_steps")) is int, "a number"),
        ("parameters", isinstance(content.get("parameters"), dict), "an object"),
        ("placement", _is_table(content.get("placement"), int), "a list of ranks for every pipe"),
        ("edges", _is_table(content.get("edges"), int, 2), "a list of pairs of stages"),
        ("actions", _is_table(content.get("actions"), str), "a list of words for every rank"),
    ):
        if not is_right:
            raise InvalidSchedule(f"{place}: {name} is {words}, not {str(content.get(name))[:60]}")
    rows = [
        [read_action(word, f"{place}, rank {rank}, action {index}") for index, word in enumerate(words)]
        for rank, words in enumerate(content["actions"])
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
        schedule.columns  # noqa: B018  checks every action
    except HocketError as error:
        raise InvalidSchedule(f"{place}: {error}") from None
    return schedule


def _is_table(rows: Any, kind: type, width: int | None = None) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, list) and width in (None, len(row)) and all(type(each) is kind for each in row) for row in rows
    )
