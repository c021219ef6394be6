"""Write timelines as traces for ui.perfetto.dev and chrome://tracing: slices, message arrows, and memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hocket.errors import InvalidArgument
from hocket.pipeline.kind import kinds
from hocket.pipeline.timeline import PipelineTimeline

_ACTIONS, _BACKGROUND, _MESSAGES, _FURTHER_MESSAGES = range(4)
_THREADS = {
    _ACTIONS: "actions",
    _BACKGROUND: "background",
    _MESSAGES: "messages sent",
    _FURTHER_MESSAGES: "messages sent over the second connection",
}


def trace_events(timeline: PipelineTimeline, *, name: str = "", first_process: int = 0) -> list[dict[str, Any]]:
    """Return a timeline in the trace event format, one process per rank, with times in microseconds.

    Args:
        timeline: simulated or measured timeline.
        name: prefix of the names of ranks.
        first_process: process number of rank 0.
    """
    schedule, columns = timeline.schedule, timeline.schedule.columns
    events: list[dict[str, Any]] = []
    for rank in range(schedule.num_ranks):
        process = first_process + rank
        label = f"{name} rank {rank}".strip()
        events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": label}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}})
        for thread, thread_name in _THREADS.items():
            events.append(
                {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": thread_name}}
            )
    begins, ends = timeline.begin_s * 1e6, timeline.end_s * 1e6
    during, after = timeline.memory.during_nbytes, timeline.memory.after_nbytes
    for row in range(len(columns)):
        action = schedule.action(row)
        kind = kinds()[action.kind]
        process = first_process + int(columns.rank[row])
        arguments = {key: value for key, value in action._asdict().items() if key != "kind"}
        events.append(
            {
                "ph": "X", "name": str(action), "cat": action.kind, "pid": process,
                "tid": _ACTIONS if kind.resource == "rank" else _BACKGROUND,
                "ts": begins[row], "dur": ends[row] - begins[row], "args": arguments,
            }
        )  # fmt: skip
        counter = {"ph": "C", "name": "held", "pid": process}
        events.append({**counter, "ts": begins[row], "args": {"bytes": during[row]}})
        events.append({**counter, "ts": ends[row], "args": {"bytes": after[row]}})
    events += _message_events(timeline, first_process)
    return events


def write_trace(
    timelines: PipelineTimeline | Sequence[PipelineTimeline], path: str | Path, *, names: Sequence[str] | None = None
) -> None:
    """Write one or several timelines as a JSON trace for ui.perfetto.dev.

    Args:
        timelines: simulated or measured timelines.
        path: file to write.
        names: names of the timelines; by default the name of the schedule and "simulated" or "measured".

    Raises:
        InvalidArgument: the number of names is wrong, or the file cannot be written.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> hk.pipeline.write_trace(hk.pipeline.simulate(hk.pipeline.build("gpipe", 2, 2)), "trace.json")
        >>> events = json.loads(Path("trace.json").read_text())["traceEvents"]
        >>> [event["name"] for event in events if event.get("cat") == "F"]
        ['0F0', '0F1', '1F0', '1F1']
    """
    several = [timelines] if isinstance(timelines, PipelineTimeline) else list(timelines)
    if names is None:
        names = [f"{each.schedule.name}, {each.source}:" for each in several] if len(several) > 1 else [""]
    if len(names) != len(several):
        raise InvalidArgument(f"each timeline needs one name: got {len(several)} timelines and {len(names)} names")
    events: list[dict[str, Any]] = []
    first = 0
    for timeline, name in zip(several, names, strict=True):
        events += trace_events(timeline, name=name, first_process=first)
        first += timeline.schedule.num_ranks
    try:
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror}") from None


def _message_events(timeline: PipelineTimeline, first_process: int) -> list[dict[str, Any]]:
    """Return a slice for every message at its sender, with arrows from its producer and to its consumer."""
    messages, events = timeline.messages, []
    fabric = timeline.costs.network()
    ranks = messages.from_rank, messages.to_rank
    tracks = _MESSAGES + (np.zeros(len(messages), np.int32) if fabric is None else fabric.connections(*ranks))
    for number in range(len(messages)):
        source, destination = int(messages.source[number]), int(messages.destination[number])
        begin, end = timeline.message_begin_s[number] * 1e6, timeline.message_end_s[number] * 1e6
        sender, receiver = (first_process + int(each[number]) for each in (messages.from_rank, messages.to_rank))
        producer, consumer = timeline.schedule.action(source), timeline.schedule.action(destination)
        name, track = f"{producer} > {consumer}", int(tracks[number])
        common = {"name": "message", "cat": "message", "id": first_process * 1_000_000 + number}
        events += [
            {
                "ph": "X", "name": name, "cat": "message", "pid": sender, "tid": track, "ts": begin,
                "dur": end - begin, "args": {"nbytes": messages.nbytes[number]},
            },
            # An arrow begins within the slice of the producer and ends at the consumer.
            {"ph": "s", **common, "pid": sender, "tid": _ACTIONS, "ts": timeline.begin_s[source] * 1e6},
            {"ph": "t", **common, "pid": sender, "tid": track, "ts": begin},
            {
                "ph": "f", "bp": "e", **common, "pid": receiver, "tid": _ACTIONS,
                "ts": timeline.begin_s[destination] * 1e6,
            },
        ]  # fmt: skip
    return events
