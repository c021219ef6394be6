"""Schedules as text for people: one line per rank, with actions such as 2F0."""

from __future__ import annotations

from typing import Any

from hocket.errors import HocketError, InvalidSchedule
from hocket.pipeline.formats._tokens import HEAD, read_action
from hocket.pipeline.placement import Placement
from hocket.pipeline.schedule import PipelineSchedule

ENDING = ".txt"
_HEADS = ("name", "micro-batches", "steps", "edges")


def dump(schedule: PipelineSchedule) -> str:
    """Return a schedule as text."""
    lines = [HEAD.text, f"name: {' '.join(schedule.name.split())}", f"micro-batches: {schedule.num_micro_batches}"]
    if schedule.num_steps > 1:
        lines.append(f"steps: {schedule.num_steps}")
    if not schedule.is_chain:
        lines.append("edges: " + " ".join(f"{first}>{second}" for first, second in schedule.edges))
    for pipe, ranks in enumerate(schedule.placement.ranks):
        lines.append(f"pipe {pipe}: " + " ".join(str(rank) for rank in ranks))
    for rank, actions in enumerate(schedule.actions):
        lines.append(f"rank {rank}: " + " ".join(str(action) for action in actions))
    return "\n".join(lines) + "\n"


def load(text: str, place: str = "the schedule") -> PipelineSchedule:
    """Read a schedule; `#` starts a comment, and lines may be in any order.

    Raises:
        InvalidSchedule: the text is not a valid schedule; the error names the place and the reason.

    Examples:
        >>> lines = ["hocket pipeline schedule, version 1", "micro-batches: 1", "pipe 0: 0 1"]
        >>> lines += ["rank 0: 0F0 0B0", "rank 1: 1F0 1B0  # the last stage"]
        >>> schedule = hk.pipeline.load_text("\\n".join(lines))
        >>> schedule, hk.pipeline.simulate(schedule).makespan_s
        (<mine: 2 ranks, 1 micro-batches>, 6.0)
    """
    fields: dict[str, tuple[int, str]] = {}
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line]
    HEAD.check(numbered[0][1] if numbered else "", f"{place}, line {numbered[0][0] if numbered else 1}")
    for number, line in numbered[1:]:
        key, colon, value = line.partition(":")
        key = " ".join(key.split())
        word, _, index = key.partition(" ")
        if not colon or not (key in _HEADS or (word in ("pipe", "rank") and index.isdecimal() and len(index) < 10)):
            raise InvalidSchedule(
                f"{place}, line {number}: a line must start with one of {', '.join(f'{head}:' for head in _HEADS)} "
                f"pipe 0: or rank 0:, got {line[:40]!r}"
            )
        if key in fields:
            raise InvalidSchedule(f"{place}, line {number}: duplicate of {key} in line {fields[key][0]}")
        fields[key] = (number, value.strip())
    pipes, ranks = (_in_order(fields, word, place) for word in ("pipe", "rank"))
    rows = [
        [read_action(word, f"{place}, line {line}, action {index}") for index, word in enumerate(value.split())]
        for line, value in ranks
    ]
    numbers = {head: _number(fields, head, place) for head in ("micro-batches", "steps")}
    if "micro-batches" not in fields:
        raise InvalidSchedule(f"{place}: the line micro-batches: is missing")
    edges = tuple(_edge(word, place, fields["edges"][0]) for word in fields.get("edges", (0, ""))[1].split())
    try:
        placement = Placement(tuple(tuple(_rank(word, place, line) for word in value.split()) for line, value in pipes))
        schedule = PipelineSchedule(
            fields.get("name", (0, "mine"))[1], placement, numbers["micro-batches"], rows, edges, numbers["steps"]
        )
        schedule.columns  # noqa: B018  validates every action
    except HocketError as error:
        raise InvalidSchedule(f"{place}: {error}") from None
    return schedule


def _in_order(fields: dict[str, tuple[int, str]], word: str, place: str) -> list[tuple[int, str]]:
    """Return the lines `rank 0:`, `rank 1:`, ..., in order; none may be missing."""
    lines: dict[int, Any] = {int(key.split()[1]): each for key, each in fields.items() if key.startswith(f"{word} ")}
    numbers = sorted(lines)
    missing = next((expected for expected, number in enumerate(numbers) if expected != number), None)
    if missing is not None or not numbers:
        raise InvalidSchedule(f"{place}: the line {word} {missing or 0}: is missing")
    return [lines[number] for number in numbers]


def _number(fields: dict[str, tuple[int, str]], head: str, place: str) -> int:
    line, value = fields.get(head, (0, "1"))
    if not value.isdecimal() or len(value) > 9 or int(value) < 1:
        raise InvalidSchedule(f"{place}, line {line}: {head} must be an integer of 1 or more, got {value!r}")
    return int(value)


def _rank(word: str, place: str, line: int) -> int:
    if not word.isdecimal() or len(word) > 9:
        raise InvalidSchedule(
            f"{place}, line {line}: a pipe must be the rank of every stage, such as 0 1 2, got {word!r}"
        )
    return int(word)


def _edge(word: str, place: str, line: int) -> tuple[int, int]:
    first, arrow, second = word.partition(">")
    if not (arrow and first.isdecimal() and second.isdecimal() and len(word) < 20):
        raise InvalidSchedule(f"{place}, line {line}: an edge must be two stages, such as 0>2, got {word!r}")
    return int(first), int(second)
