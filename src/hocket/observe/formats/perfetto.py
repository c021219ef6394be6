"""Timelines as Perfetto's own traces: a fifth of the JSON's size, and no limit of a browser's parser.

A trace is a list of protobuf messages (protos/perfetto/trace/trace_packet.proto and track_event.proto of Perfetto);
here are the fields that timelines need. Names are written in full: a compressor finds them.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hocket.observe.formats.chrome import trace_events
from hocket.observe.formats.stream import write_stream

if TYPE_CHECKING:
    from hocket.observe.saved import ObservedRun

ENDINGS = (".pftrace", ".pftrace.gz")
_PACKET = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _TRACK = 8, 10, 11, 60
"""Fields of a TracePacket."""
_UUID, _NAME, _PROCESS, _PARENT, _COUNTER = 1, 2, 3, 5, 8
"""Of a TrackDescriptor."""
_PID, _PROCESS_NAME, _COMMAND = 1, 6, 2
"""Of a ProcessDescriptor."""
_ANNOTATION, _TYPE, _TRACK_UUID, _CATEGORY, _EVENT_NAME, _COUNTER_VALUE, _FLOW, _LAST_FLOW = (
    4,
    9,
    11,
    22,
    23,
    44,
    47,
    48,
)
"""Of a TrackEvent."""
_BEGIN, _END, _VALUE = 1, 2, 4
_ANNOTATION_NAME, _INT, _TEXT = 10, 4, 6
"""Of a DebugAnnotation."""
_LANES = 1 << 32
"""Numbers of tracks: a process's own is its place plus 1, in units of this; its lanes come behind it."""
_COUNTERS = 1 << 31
_NS_PER_US = 1e3
_Ends = tuple[list[bytes], list[bytes]]


def write_perfetto(run: ObservedRun, path: Path) -> None:
    """Write all events of a run; the file is there as a whole or not at all.

    Args:
        run: from `open_run`.
        path: of the file; with the ending .gz it is compressed.
    """
    write_stream(path, (_bytes(_PACKET, packet) for packet in _packets(run, _flows(run))))


def _flows(run: ObservedRun) -> dict[tuple[int, int, float], _Ends]:
    """The flows that begin and that end with a slice, by its process, lane and begin."""
    found: dict[tuple[int, int, float], _Ends] = defaultdict(lambda: ([], []))
    begins: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in trace_events(run):
        if event["ph"] == "X":
            begins[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "s":
            found[event["pid"], event["tid"], event["ts"]][0].append(_fixed64(_FLOW, event["id"] + 1))
        elif event["ph"] == "f":
            lane = begins[event["pid"], event["tid"]]
            place = bisect_right(lane, (event["ts"], math.inf)) - 1
            while lane[place][1] < event["ts"]:  # it is over: the slice lies in one that began before
                place -= 1
            found[event["pid"], event["tid"], lane[place][0]][1].append(_fixed64(_LAST_FLOW, event["id"] + 1))
    return found


def _packets(run: ObservedRun, flows: Mapping[tuple[int, int, float], _Ends]) -> Iterator[bytes]:
    open_ends: dict[tuple[int, int], list[tuple[float, list[bytes]]]] = defaultdict(list)
    labels: dict[int, str] = {}
    counters: dict[tuple[int, str], int] = {}
    for event in trace_events(run):
        place, lane = event["pid"], event["tid"]
        if event["ph"] == "M":
            yield from _described(event, labels)
        elif event["ph"] == "X":
            stack = open_ends[place, lane]
            while stack and stack[-1][0] <= event["ts"]:
                yield _ended(stack, _track_of(place, lane))
            sent, received = flows.get((place, lane, event["ts"]), ([], []))
            stack.append((event["ts"] + event["dur"], received))
            parts = [_text(_CATEGORY, event["cat"]), _text(_EVENT_NAME, event["name"]), *sent]
            parts += [_bytes(_ANNOTATION, _annotation(name, value)) for name, value in event["args"].items()]
            yield _event(event["ts"], _track_of(place, lane), _BEGIN, *parts)
        elif event["ph"] == "C":
            key = place, event["name"]
            if key not in counters:
                counters[key] = (place + 1) * _LANES + _COUNTERS + len(counters)
                yield _counter_track(counters[key], place, event["name"])
            value = _double(_COUNTER_VALUE, event["args"][event["name"]])
            yield _event(event["ts"], counters[key], _VALUE, value)
    for (place, lane), stack in open_ends.items():
        while stack:
            yield _ended(stack, _track_of(place, lane))


def _ended(stack: list[tuple[float, list[bytes]]], track: int) -> bytes:
    """The end of a slice, and of its flows: a receive may have begun before its send, but does not end before it."""
    us, received = stack.pop()
    return _event(us, track, _END, *received)


def _described(event: dict[str, Any], labels: dict[int, str]) -> Iterator[bytes]:
    """The track of a process, once its name and command are known, or of a lane."""
    place, lane = event["pid"], event["tid"]
    if event["name"] == "process_name":
        labels[place] = event["args"]["name"]
    elif event["name"] == "process_labels":
        command = _text(_COMMAND, event["args"]["labels"])
        process = _number(_PID, place + 1) + _text(_PROCESS_NAME, labels[place]) + command
        uuid = _number(_UUID, (place + 1) * _LANES)
        yield _packet(_bytes(_TRACK, uuid + _bytes(_PROCESS, process)))
    elif event["name"] == "thread_name":
        uuid, parent = _number(_UUID, _track_of(place, lane)), _number(_PARENT, (place + 1) * _LANES)
        yield _packet(_bytes(_TRACK, uuid + parent + _text(_NAME, event["args"]["name"])))


def _counter_track(uuid: int, place: int, name: str) -> bytes:
    parent = _number(_PARENT, (place + 1) * _LANES)
    return _packet(_bytes(_TRACK, _number(_UUID, uuid) + parent + _text(_NAME, name) + _bytes(_COUNTER, b"")))


def _track_of(place: int, lane: int) -> int:
    return (place + 1) * _LANES + lane + 1


def _event(us: float, track: int, kind: int, *parts: bytes) -> bytes:
    content = _number(_TYPE, kind) + _number(_TRACK_UUID, track) + b"".join(parts)
    return _packet(_number(_TIMESTAMP, max(round(us * _NS_PER_US), 0)) + _bytes(_EVENT, content))


def _packet(content: bytes) -> bytes:
    return content + _number(_SEQUENCE, 1)


def _annotation(name: str, value: object) -> bytes:
    shown = _text(_TEXT, value) if isinstance(value, str) else _number(_INT, int(cast(int, value)))
    return _text(_ANNOTATION_NAME, name) + shown


def _varint(value: int) -> bytes:
    """A number in groups of seven bits, the lowest first; negative ones are those of 64 bits."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _fixed64(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<Q", value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode("utf-8", "replace"))
