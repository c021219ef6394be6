"""Timelines as traces for ui.perfetto.dev and chrome://tracing: slices, messages with arrows, and memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hocket.errors import InvalidArgument
from hocket.pipeline.kind import kinds
from hocket.pipeline.timeline import PipelineTimeline

_ACTIONS, _ASIDE, _MESSAGES, _FURTHER_MESSAGES = range(4)
_THREADS = {
    _ACTIONS: "actions",
    _ASIDE: "aside",
    _MESSAGES: "messages sent",
    _FURTHER_MESSAGES: "messages sent over its other connection",
}


def trace_events(timeline: PipelineTimeline, *, name: str = "", first_process: int = 0) -> list[dict[str, Any]]:
    """Return a timeline in the trace event format, a process a rank; times in microseconds.

    Args:
        timeline: simulated or measured.
        name: before the names of ranks.
        first_process: number of the first rank's process.
    """
    schedule, columns = timeline.schedule, timeline.schedule.columns
    events: list[dict[str, Any]] = []
    for rank in range(schedule.num_ranks):
        process = first_process + rank
        label = f"{name} rank {rank}".strip()
        events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": label}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}})
        for thread, words in _THREADS.items():
            events.append({"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": words}})
    begins, ends = timeline.begin_s * 1e6, timeline.end_s * 1e6
    held, left = timeline.memory.during_nbytes, timeline.memory.after_nbytes
    for row in range(len(columns)):
        action = schedule.action(row)
        kind = kinds()[action.kind]
        process = first_process + int(columns.rank[row])
        arguments = {key: value for key, value in action._asdict().items() if key != "kind"}
        events.append(
            {
                "ph": "X", "name": str(action), "cat": action.kind, "pid": process,
                "tid": _ACTIONS if kind.resource == "rank" else _ASIDE,
                "ts": begins[row], "dur": ends[row] - begins[row], "args": arguments,
            }
        )  # fmt: skip
        counter = {"ph": "C", "name": "held", "pid": process}
        events.append({**counter, "ts": begins[row], "args": {"bytes": held[row]}})
        events.append({**counter, "ts": ends[row], "args": {"bytes": left[row]}})
    events += _message_events(timeline, first_process)
    return events


def write_trace(
    timelines: PipelineTimeline | Sequence[PipelineTimeline], path: str | Path, *, names: Sequence[str] | None = None
) -> None:
    """Write one timeline, or several below each other, as JSON that ui.perfetto.dev opens.

    Args:
        timelines: simulated or measured.
        path: of the file.
        names: of each; the schedule's, and simulated or measured, if not given.

    Raises:
        InvalidArgument: there are not as many names as timelines, or the file cannot be written.
    """
    several = [timelines] if isinstance(timelines, PipelineTimeline) else list(timelines)
    if names is None:
        names = [f"{each.schedule.name}, {each.source}:" for each in several] if len(several) > 1 else [""]
    if len(names) != len(several):
        raise InvalidArgument(f"there are {len(several)} timelines, and {len(names)} names")
    events: list[dict[str, Any]] = []
    first = 0
    for timeline, name in zip(several, names, strict=True):
        events += trace_events(timeline, name=name, first_process=first)
        first += timeline.schedule.num_ranks
    try:
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}") from None


def _message_events(timeline: PipelineTimeline, first_process: int) -> list[dict[str, Any]]:
    """A slice for every message at its sender, and arrows from what made it to it and on to what needs it."""
    messages, events = timeline.messages, []
    fabric = timeline.costs.network()
    ranks = messages.from_rank, messages.to_rank
    tracks = _MESSAGES + (np.zeros(len(messages), np.int32) if fabric is None else fabric.connections(*ranks))
    for number in range(len(messages)):
        source, destination = int(messages.source[number]), int(messages.destination[number])
        begin, end = timeline.message_begin_s[number] * 1e6, timeline.message_end_s[number] * 1e6
        sender, receiver = (first_process + int(each[number]) for each in (messages.from_rank, messages.to_rank))
        made, needed = timeline.schedule.action(source), timeline.schedule.action(destination)
        name, track = f"{made} > {needed}", int(tracks[number])
        common = {"name": "message", "cat": "message", "id": first_process * 1_000_000 + number}
        events += [
            {
                "ph": "X", "name": name, "cat": "message", "pid": sender, "tid": track, "ts": begin,
                "dur": end - begin, "args": {"nbytes": messages.nbytes[number]},
            },
            # An arrow begins within the slice that made the message, and ends at the one that needs it.
            {"ph": "s", **common, "pid": sender, "tid": _ACTIONS, "ts": timeline.begin_s[source] * 1e6},
            {"ph": "t", **common, "pid": sender, "tid": track, "ts": begin},
            {
                "ph": "f", "bp": "e", **common, "pid": receiver, "tid": _ACTIONS,
                "ts": timeline.begin_s[destination] * 1e6,
            },
        ]  # fmt: skip
    return events
