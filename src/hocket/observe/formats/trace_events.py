"""Timelines in Chrome's Trace Event Format, as torch's profiler (Kineto), Perfetto's users and hocket write them.

Reference: Trace Event Format, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Operations are
the kernels of NCCL with the fields that torch adds ("Collective name"), and what torch records around the operations
of gloo and MPI. Times that run backwards are unknown.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.errors import RecorderError
from hocket.observe.formats.imported import item_nbytes, nbytes_of, operation_of
from hocket.observe.formats.reading import ReadObject, parse_json, pieces_of

if TYPE_CHECKING:
    from hocket.observe.formats.imported import ImportedTables

_CPU_LIBRARIES = ("gloo", "mpi")
_MOST_ITEMS = 1 << 56
_BEGINS, _ENDS = ("B", "b"), ("E", "e")
_INSTANTS = ("i", "I", "R", "n")


class _Timeline:
    """One file."""

    def __init__(self, path: Path, tables: ImportedTables) -> None:
        self._path, self._tables = path, tables
        self._head, self._events, self.is_partial = _content(path)
        self._base_ns = self._head.integer("baseTimeNanoseconds", 0)
        self._names: dict[tuple[Any, ...], str] = {}
        self._open: dict[tuple[Any, ...], list[tuple[ReadObject, int]]] = {}
        self.num_records = self.num_left_out = 0
        distributed = self._head.child("distributedInfo")
        self._rank = distributed.integer("rank", -1)
        self._world_size = distributed.integer("world_size", 0)
        self._host = self._head.text("host_name", "")
        self._has_kernels = False

    @property
    def version(self) -> str:
        """Of the schema, if the file says it."""
        return str(self._head.integer("schemaVersion", "")) if "schemaVersion" in self._head else ""

    def read(self) -> None:
        """Add all events."""
        events = [ReadObject(each, f"{self._path}, event {place}") for place, each in enumerate(self._events)]
        for event in events:
            if event.content.get("ph") == "M":
                self._add_name(event)
            elif event.content.get("cat") == "kernel" and "Collective name" in event.child("args"):
                self._has_kernels = True
        for event in events:
            self._add(event)
        self.num_left_out += sum(map(len, self._open.values()))  # they never ended

    def _add_name(self, event: ReadObject) -> None:
        kind, name = event.text("name", ""), event.child("args").content.get("name")
        if isinstance(name, str) and kind in ("process_name", "thread_name"):
            thread = str(event.content.get("tid")) if kind == "thread_name" else None
            self._names[str(event.content.get("pid")), thread] = name

    def _add(self, event: ReadObject) -> None:
        phase = event.text("ph")
        if phase == "M":
            return
        if phase == "X":
            begin_ns, duration_us = self._time_ns(event), event.number("dur", -1.0)
            self._add_slice(event, begin_ns, begin_ns + round(duration_us * 1e3) if duration_us >= 0 else None)
        elif phase in _BEGINS:
            self._open.setdefault(_track(event, phase), []).append((event, self._time_ns(event)))
        elif phase in _ENDS and (begun := self._open.get(_track(event, phase))):
            began, begin_ns = begun.pop()
            self._add_slice(began, begin_ns, self._time_ns(event))
        elif phase in _INSTANTS:
            self._add_slice(event, self._time_ns(event), self._time_ns(event))
        elif phase == "C":
            self._add_counters(event)
        else:
            self.num_left_out += 1

    def _add_slice(self, event: ReadObject, begin_ns: int, end_ns: int | None) -> None:
        process = self._process(event)
        if end_ns is not None and end_ns < begin_ns:
            end_ns = None
        name, category = event.text("name", ""), event.text("cat", "")
        pid, tid = str(event.content.get("pid")), str(event.content.get("tid"))
        thread = self._names.get((pid, tid), tid)
        self._tables.add("slices", process=process, thread=thread, category=category, name=name, began_s=begin_ns,
                         ended_s=end_ns)  # fmt: skip
        self.num_records += 1
        arguments = event.child("args")
        library = name.split(":")[0]
        if self._has_kernels and category == "kernel" and "Collective name" in arguments:
            self._add_kernel(arguments, process, begin_ns, end_ns)
        elif category == "user_annotation" and library in _CPU_LIBRARIES and ":" in name:
            nbytes = nbytes_of(arguments.content.get("Input Dims"), arguments.content.get("Input type"))
            self._tables.add("operations", process=process, op=operation_of(name), nbytes=nbytes, began_s=begin_ns,
                             ended_s=end_ns, state="completed", library=library, weight=1)  # fmt: skip

    def _add_kernel(self, arguments: ReadObject, process: int, begin_ns: int, end_ns: int | None) -> None:
        name, size = arguments.text("Process Group Name", ""), arguments.integer("Group size", 0)
        ranks = arguments.content.get("Process Group Ranks")
        label = arguments.text("Process Group Description", "") or name
        item = item_nbytes(arguments.text("dtype", ""))
        count = arguments.integer("In msg nelems", -1)
        op = operation_of(arguments.text("Collective name"))
        peer = arguments.integer("Dst Rank" if op == "send" else "Src Rank", -1) if op in ("send", "recv") else -1
        self._tables.add(
            "operations",
            process=process,
            comm=self._tables.comm((name, str(ranks), size), label, size),
            number=arguments.integer("Seq", -1),
            op=op,
            peer=peer,
            nbytes=-1 if item is None or not 0 <= count < _MOST_ITEMS else count * item,
            began_s=begin_ns,
            ended_s=end_ns,
            state="completed",
            is_async=True,
            library="nccl",
            weight=1,
        )

    def _add_counters(self, event: ReadObject) -> None:
        process, at_ns = self._process(event), self._time_ns(event)
        for series, value in event.child("args").content.items():
            if type(value) in (int, float):
                self._tables.add("counters", process=process, name=event.text("name"), series=str(series), at_s=at_ns,
                                 value=event.child("args").number(series))  # fmt: skip
        self.num_records += 1

    def _process(self, event: ReadObject) -> int:
        """A file of torch's profiler is one process, though GPUs have numbers of processes in it."""
        if self._rank >= 0:
            return self._tables.process(("rank", self._rank), rank=self._rank, size=self._world_size, host=self._host)
        pid = event.content.get("pid")
        name = self._names.get((str(pid), None), "")
        return self._tables.process(
            (str(self._path), str(pid)), pid=pid if type(pid) is int and abs(pid) < 1 << 31 else -1, program=name
        )

    def _time_ns(self, event: ReadObject) -> int:
        time_us = event.number("ts")
        return self._base_ns + (time_us * 1000 if isinstance(time_us, int) else round(time_us * 1e3))


def read_trace_events(path: Path, tables: ImportedTables) -> None:
    """Add the slices, counters and operations of a timeline.

    Args:
        path: of JSON, compressed or not.
        tables: to add to.

    Raises:
        RecorderError: it is no such file, or an event is not as it should be; names it.
    """
    timeline = _Timeline(path, tables)
    timeline.read()
    tables.add("sources", file=str(path), format="trace events", version=timeline.version,
               num_records=timeline.num_records, num_left_out=timeline.num_left_out,
               is_partial=timeline.is_partial)  # fmt: skip


def _content(path: Path) -> tuple[ReadObject, list[Any], bool]:
    """What a file says besides its events, its events, and whether its end is missing."""
    text = b"".join(pieces_of(path)).strip()
    is_partial = text.startswith(b"[") and not text.endswith(b"]")
    if is_partial:  # writers that were killed leave the list open, which the format allows
        text = (text if text.endswith((b"},", b"}")) else text[: text.rfind(b"},") + 1]).rstrip(b",") + b"]"
    content = parse_json(text, str(path))
    if isinstance(content, list):
        return ReadObject({}, str(path)), content, is_partial
    head = ReadObject(content, str(path))
    if "traceEvents" not in head:
        raise RecorderError(f'{path}: it has no "traceEvents"')
    return head, head.sequence("traceEvents"), False


def _track(event: ReadObject, phase: str) -> tuple[Any, ...]:
    place = str(event.content.get("pid")), str(event.content.get("tid"))
    if phase in ("b", "e"):
        return ("asynchronous", event.text("cat", ""), str(event.content.get("id")), place[0])
    return place
