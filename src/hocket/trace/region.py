"""The memory of a recorder, read from outside: of a process that runs, hangs, is stopped or was killed.

The layout is that of native/recorder/layout.hpp. Nothing in it is believed before it is bounded: the writer may have
been killed at any instruction, and a file may be of anything.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.errors import RecorderError
from hocket.trace import io_totals
from hocket.trace.end_status import END_STATUS, END_STATUS_AT, EndStatus, parse_end_status
from hocket.trace.event_check import are_events
from hocket.trace.io_totals import NO_IO_TOTALS, IoTotals, parse_io_totals
from hocket.trace.record import EVENT_FIELDS, EVENT_STATES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAGIC = b"HCKRECR1"
SCHEMA = 1
"""The newest layout that this version reads."""
RINGS = ("operations", "foreign", "transfers", "program", "io", "process", "dask")
"""Names of a recorder's rings, by the native RingId."""
DEFINITION_KINDS = (
    "communicator", "backend", "algorithm", "thread", "region", "file", "counter", "members", "variable",
    "policy", "connection",
)  # fmt: skip
NUM_TIME_BINS = 40
FIRST_TIME_BIN = 4
"""Bin b of a histogram counts times from ``2**(b + FIRST_TIME_BIN)`` ticks to less than twice that; ends are open."""
MOST_MEMBERS = 1 << 20
"""A communicator with more members than this is not believed."""
MOST_NBYTES = 8 << 20
"""A recorder is never larger."""

_HEADER = struct.Struct("<8sIIQIIIIQQII40siiII64s192sQqq")
_DEFINITIONS = struct.Struct("<QQQQ")
_TABLE = struct.Struct("<QQQQ32x")
_RING = struct.Struct("<QQQQ32xQQQQQ24x")
_DEFINITION = struct.Struct("<IHHIi")
_EVENT_NBYTES = 64
_NUM_TABLES = 2
_HEADER_NBYTES = 4096
_HISTOGRAM_NBYTES = 400
_DEFINITIONS_AT, _TABLES_AT = 448, 512
_NUM_FIRST_RINGS, _RINGS_AT, _LATER_RINGS_AT = 6, 640, 1664
_TRIES = 3

HISTOGRAM_FIELDS = (
    ("version", "<u4"), ("comm", "<u4"), ("peer", "<i4"), ("algorithm", "<u2"), ("kind", "u1"), ("backend", "u1"),
    ("layer", "u1"), ("size_class", "u1"), ("is_used", "u1"), ("unused", "u1", 5), ("count", "<u8"), ("failed", "<u8"),
    ("nbytes", "<u8"), ("ticks", "<u8"), ("least_ticks", "<u8"), ("most_ticks", "<u8"),
    ("bins", "<u8", NUM_TIME_BINS), ("reserved", "<u8"),
)  # fmt: skip


@dataclass(frozen=True)
class Owner:
    """The process that a recorder belongs to.

    Args:
        pid: its number.
        started: its start, in clock ticks since boot: numbers of processes are given away again, starts are not.
        image: random number of its program, another one after `os.execv`.
        boot_id: of the kernel that it runs or ran under.
        host: name of its host.
        program: what it was started as.
        rank: its rank in the job; None: unknown.
        world_size: number of ranks of the job; None: unknown.
        has_ended: whether it has ended normally.
        pid_namespace: in which `pid` is its number, as in ``readlink /proc/self/ns/pid``; 0: unknown.

    Examples:
        >>> import os
        >>> with hk.init():
        ...     snapshot = hk.trace.find_recorders(os.getpid())[0].read()
        >>> snapshot.owner.pid == os.getpid(), snapshot.owner.has_ended
        (True, False)
    """

    pid: int
    started: int
    image: int
    boot_id: str
    host: str
    program: str
    rank: int | None
    world_size: int | None
    has_ended: bool
    pid_namespace: int


@dataclass(frozen=True)
class Definition:
    """A name that events refer to by number.

    Args:
        kind: one of `DEFINITION_KINDS`.
        text: the name.
        id: number of the communicator, file, region, counter, thread or connection.
        number: of a backend or an algorithm, in the communicator `id`.
        extra: of a communicator, this process's rank in it; of a thread, its id in the kernel.

    Examples:
        >>> import os
        >>> with hk.init():
        ...     snapshot = hk.trace.find_recorders(os.getpid())[0].read()
        >>> "shm" in {each.text for each in snapshot.definitions if each.kind == "backend"}
        True
    """

    kind: str
    text: str
    id: int
    number: int
    extra: int


@dataclass(frozen=True)
class Ring:
    """The events of one ring.

    ``issued == recorded + sampled_out + dropped`` where the process is not just recording.

    Args:
        name: one of `RINGS`.
        events: structured array with `EVENT_FIELDS`, oldest first.
        places: of each event, how many of this ring were recorded before it.
        capacity: how many events it can hold.
        next_place: place of the next event.
        issued, recorded, sampled_out, dropped: numbers of events since the start of the process.
        num_unreadable: slots that were being written, or were written by nobody; they are not in `events`.
        cost_ticks: estimate of the ticks that recording took.

    Examples:
        >>> import os
        >>> with hk.init():
        ...     snapshot = hk.trace.find_recorders(os.getpid())[0].read()
        >>> ring = snapshot.rings["operations"]
        >>> ring.issued == ring.recorded + ring.sampled_out + ring.dropped
        True
    """

    name: str
    events: NDArray[np.void]
    places: NDArray[np.int64]
    capacity: int
    next_place: int
    issued: int
    recorded: int
    sampled_out: int
    dropped: int
    num_unreadable: int
    cost_ticks: int


@dataclass(frozen=True)
class RecorderSnapshot:
    """What a recorder held at one moment.

    Args:
        source: file or process that it was read from, for messages.
        owner: the process that wrote it.
        ticks_are_tsc: whether times are in ticks of the time-stamp counter; else in nanoseconds.
        anchor: ticks, nanoseconds of the monotonic clock, and nanoseconds since 1970, all at the recorder's start.
        rings: by name.
        histograms: structured array with `HISTOGRAM_FIELDS`, one entry for each kind of operation; those of hocket's
            own operations and transfers come first.
        num_own_histograms: how many these are.
        num_overflowed: operations that the last entry of a full table counts together.
        definitions: in the order in which they were made.
        io: the kernel's counters of the process's I/O, and bytes that are in no event.
        end_status: what the process said of itself at its normal end; None: it has not ended normally, or nobody
            collects its recorder.
        problems: what could not be read, each with the source and the offset; all else is in the snapshot.

    Examples:
        >>> import os
        >>> with hk.init():
        ...     snapshot = hk.trace.find_recorders(os.getpid())[0].read()
        >>> list(snapshot.rings)
        ['operations', 'foreign', 'transfers', 'program', 'io', 'process', 'dask']
    """

    source: str
    owner: Owner
    ticks_are_tsc: bool
    anchor: tuple[int, int, int]
    rings: Mapping[str, Ring]
    histograms: NDArray[np.void]
    num_own_histograms: int
    num_overflowed: int
    definitions: tuple[Definition, ...]
    io: IoTotals
    end_status: EndStatus | None
    problems: tuple[str, ...]

    @cached_property
    def names(self) -> Mapping[tuple[str, int, int], str]:
        """Texts of the definitions by kind, id and number."""
        return {(each.kind, each.id, each.number): each.text for each in self.definitions}

    @cached_property
    def communicators(self) -> Mapping[int, Definition]:
        """Definitions of the communicators by id."""
        return {each.id: each for each in self.definitions if each.kind == "communicator"}

    @cached_property
    def variables(self) -> Mapping[str, str]:
        """Variables of the environment that say the process's place in a job of Slurm or PBS, if it is in one."""
        texts = (each.text.partition("=") for each in self.definitions if each.kind == "variable")
        return {name: value for name, _, value in texts}

    @cached_property
    def members(self) -> Mapping[int, tuple[int, ...]]:
        """Ranks in the job of the members of communicators, by id; of MPI's between two groups those of the other one.

        A member of another job has the rank -1.
        """
        return {each.id: _member_ranks(each.text) for each in self.definitions if each.kind == "members"}


def read_recorder(path: str | Path, latest: int | None = None) -> RecorderSnapshot:
    """Read a recorder's file, or the copy of one.

    Args:
        path: the file; also ``/proc/PID/fd/N`` of a descriptor.
        latest: read at most so many of the latest events of each ring; None: all.

    Raises:
        RecorderError: the file cannot be read, is not a recorder, or has a newer layout; the message names the file
            and the offset.

    Examples:
        >>> import os
        >>> with hk.init():
        ...     (place,) = hk.trace.find_recorders(os.getpid())
        ...     hk.trace.read_recorder(place.path).problems
        ()
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise RecorderError(f"{path}: {error.strerror}") from None
    try:
        return _Reader(fd, str(path), latest).snapshot()
    finally:
        os.close(fd)


def ring_header_at(number: int) -> int:
    """Return where the header of a ring begins; those of later rings lie behind all else."""
    if number < _NUM_FIRST_RINGS:
        return _RINGS_AT + number * _RING.size
    return _LATER_RINGS_AT + (number - _NUM_FIRST_RINGS) * _RING.size


class _Reader:
    """Reads with `os.pread`: a mapping of a file that another process shortens would be a SIGBUS."""

    def __init__(self, fd: int, source: str, latest: int | None) -> None:
        self._fd = fd
        self._source = source
        self._latest = latest
        self._problems: list[str] = []

    def snapshot(self) -> RecorderSnapshot:
        import numpy as np

        head = self._read(0, _HEADER.size)
        if len(head) < _HEADER.size:
            raise self._error(len(head), f"it ends after {len(head)} bytes; a recorder has a head of {_HEADER.size}")
        (
            magic, schema, header_nbytes, region_nbytes, event_nbytes, num_rings, histogram_nbytes, num_tables,
            started, image, pid, is_tsc, boot_id, rank, world_size, has_ended, namespace, host, program, *anchor,
        ) = _HEADER.unpack(head)  # fmt: skip
        if magic != MAGIC:
            raise self._error(0, f"it begins with {magic!r}; a recorder begins with {MAGIC!r}")
        if schema > SCHEMA:
            raise self._error(8, f"its layout has number {schema}; this version of hocket reads up to {SCHEMA}")
        found = schema, header_nbytes, event_nbytes, num_rings, histogram_nbytes, num_tables
        expected = 1, _HEADER_NBYTES, _EVENT_NBYTES, _NUM_FIRST_RINGS, _HISTOGRAM_NBYTES, _NUM_TABLES
        if found != expected:
            raise self._error(8, f"its sizes are {found}; those of layout 1 are {expected}")
        if not _HEADER_NBYTES <= region_nbytes <= MOST_NBYTES:
            raise self._error(
                16,
                f"the header gives {region_nbytes} bytes; it must be {_HEADER_NBYTES} to {MOST_NBYTES}",
            )
        self._end = region_nbytes
        end = ring_header_at(len(RINGS))
        rest = self._read(_DEFINITIONS_AT, end - _DEFINITIONS_AT).ljust(end - _DEFINITIONS_AT, b"\0")
        tables = [_TABLE.unpack_from(rest, _TABLES_AT - _DEFINITIONS_AT + i * _TABLE.size) for i in range(_NUM_TABLES)]
        rings = [_RING.unpack_from(rest, ring_header_at(i) - _DEFINITIONS_AT) for i in range(len(RINGS))]
        (own, others), num_overflowed = self._histograms(tables)
        events = {name: self._ring(i, name, *ring) for i, (name, ring) in enumerate(zip(RINGS, rings, strict=True))}
        # Names come before the events that refer to them, so they are read after these.
        names = self._read(_DEFINITIONS_AT, _DEFINITIONS.size).ljust(_DEFINITIONS.size, b"\0")
        definitions = self._definitions(*_DEFINITIONS.unpack(names))
        return RecorderSnapshot(
            source=self._source,
            owner=Owner(
                pid, started, image, _text(boot_id), _text(host), _text(program), None if rank < 0 else rank,
                None if world_size < 0 else world_size, bool(has_ended), namespace,
            ),
            ticks_are_tsc=bool(is_tsc),
            anchor=tuple(anchor),
            rings=events,
            histograms=np.concatenate([own, others]),
            num_own_histograms=len(own),
            num_overflowed=num_overflowed,
            definitions=definitions,
            io=self._io_totals(),
            end_status=parse_end_status(self._read(END_STATUS_AT, END_STATUS.size)),
            problems=tuple(self._problems),
        )  # fmt: skip

    def _error(self, offset: int, text: str) -> RecorderError:
        return RecorderError(f"{self._source}, offset {offset}: {text}")

    def _note(self, offset: int, text: str) -> None:
        self._problems.append(f"{self._source}, offset {offset}: {text}")

    def _read(self, offset: int, nbytes: int) -> bytes:
        try:
            parts = b""
            while len(parts) < nbytes:
                part = os.pread(self._fd, nbytes - len(parts), offset + len(parts))
                if not part:
                    break
                parts += part
            return parts
        except OSError as error:
            raise self._error(offset, str(error.strerror)) from None

    def _read_slots(self, offset: int, pieces: list[range], nbytes: int) -> bytes:
        return b"".join(self._read(offset + piece.start * nbytes, len(piece) * nbytes) for piece in pieces)

    def _is_within(self, at: int, what: str, offset: int, nbytes: int) -> bool:
        if offset >= _HEADER_NBYTES and offset + nbytes <= self._end:
            return True
        self._note(at, f"{what} would lie from {offset} to {offset + nbytes} of {self._end} bytes")
        return False

    def _definitions(self, offset: int, capacity: int, used: int, dropped: int) -> tuple[Definition, ...]:
        if used > capacity:
            self._note(_DEFINITIONS_AT + 16, f"the header gives {used} bytes of names, but has room for {capacity}")
            return ()
        if not self._is_within(_DEFINITIONS_AT, "the names", offset, used):
            return ()
        content = self._read(offset, used)
        found = []
        at = 0
        while at < used:
            if at + _DEFINITION.size > len(content):
                self._note(offset + at, "the names end in the middle of one")
                break
            nbytes, kind, number, ident, extra = _DEFINITION.unpack_from(content, at)
            begin = at + _DEFINITION.size
            if kind >= len(DEFINITION_KINDS) or begin + nbytes > len(content):
                self._note(
                    offset + at, f"a name of kind {kind} with {nbytes} bytes; it and all later names are left out"
                )
                break
            text = content[begin : begin + nbytes].decode(errors="replace")
            found.append(Definition(DEFINITION_KINDS[kind], text, ident, number, extra))
            at = begin + (nbytes + 7) // 8 * 8
        if dropped:
            self._note(_DEFINITIONS_AT, f"{dropped} names found no room; their numbers stand for them")
        return tuple(found)

    def _histograms(self, tables: list[tuple[int, ...]]) -> tuple[list[NDArray[np.void]], int]:
        import numpy as np

        layout = np.dtype(list(HISTOGRAM_FIELDS))
        found, num_overflowed = [np.zeros(0, layout) for _ in tables], 0
        for number, (offset, capacity, _, overflowed) in enumerate(tables):
            at = _TABLES_AT + number * _TABLE.size
            if not self._is_within(at, f"histogram table {number}", offset, capacity * layout.itemsize):
                continue
            content = self._read(offset, capacity * layout.itemsize)
            for _ in range(_TRIES):
                again = self._read(offset, capacity * layout.itemsize)
                if again == content:
                    break
                content = again
            entries = np.frombuffer(content[: len(content) // layout.itemsize * layout.itemsize], layout)
            if len(entries) < capacity:
                self._note(offset + len(content), f"histogram table {number} ends after {len(entries)} of {capacity}")
            found[number] = entries[entries["is_used"] == 1]
            num_overflowed += overflowed
        return found, num_overflowed

    def _io_totals(self) -> IoTotals:
        found = parse_io_totals(self._read(io_totals.AT, io_totals.LAYOUT.size))
        if found is None:
            self._note(io_totals.AT, "the totals of I/O have an unknown state; they are left out")
        return found or NO_IO_TOTALS

    def _ring(
        self, number: int, name: str, offset: int, capacity: int, _sampling_log2: int, cost_ticks: int,
        next_place: int, issued: int, recorded: int, sampled_out: int, dropped: int,
    ) -> Ring:  # fmt: skip
        import numpy as np

        layout = np.dtype([(field, "<" + code) for field, code in EVENT_FIELDS])
        at = ring_header_at(number)
        if number >= _NUM_FIRST_RINGS and offset == capacity == 0:
            pass  # an earlier version has written it
        elif capacity & (capacity - 1):
            self._note(at + 8, f"the capacity of ring {name} must be a power of two, not {capacity}")
            capacity = 0
        elif not self._is_within(at, f"ring {name}", offset, capacity * layout.itemsize):
            capacity = 0
        pieces = self._slots(capacity, next_place)
        wanted = np.concatenate([np.arange(piece.start, piece.stop) for piece in pieces])
        before, content, after = (
            np.frombuffer(part[: len(part) // layout.itemsize * layout.itemsize], layout)
            for part in (self._read_slots(offset, pieces, layout.itemsize) for _ in range(3))
        )
        num_slots = min(len(before), len(content), len(after))
        if num_slots < len(wanted):
            end = offset + int(wanted[num_slots]) * layout.itemsize
            self._note(end, f"ring {name} ends after {num_slots} of {len(wanted)} events")
        slots = wanted[:num_slots]
        before, content, after = before[:num_slots], content[:num_slots], after[:num_slots]
        version = before["version"]
        is_whole = (version == after["version"]) & (version & 1 == 0) & (version > 0)
        is_sane = are_events(name, content) & (before["state"] < len(EVENT_STATES))
        lap = (version >> 1).astype(np.int64) - 1
        place = lap * max(capacity, 1) + slots
        chosen = np.flatnonzero(is_whole & is_sane)
        chosen = chosen[np.argsort(place[chosen], kind="stable")]
        events = content[chosen].copy()
        # The state was read first: what it vouches for was in place when the rest was read.
        events["state"] = before["state"][chosen]
        return Ring(
            name=name,
            events=events,
            places=place[chosen],
            capacity=capacity,
            next_place=next_place,
            issued=issued,
            recorded=recorded,
            sampled_out=sampled_out,
            dropped=dropped,
            num_unreadable=int(np.count_nonzero((version > 0) & ~(is_whole & is_sane))),
            cost_ticks=cost_ticks,
        )

    def _slots(self, capacity: int, next_place: int) -> list[range]:
        """Return the slots to read, in one or two pieces: all, or those of the latest events."""
        latest = capacity if self._latest is None else min(self._latest, next_place)
        if latest >= capacity:
            return [range(capacity)]
        begin = (next_place - latest) % capacity
        end = begin + latest
        return [range(begin, min(end, capacity)), range(max(end - capacity, 0))]


def _member_ranks(text: str) -> tuple[int, ...]:
    """The ranks of a text such as "0-3,7,-1"; none if it is no such text."""
    ranks: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(-1|\d{1,9})(?:-(\d{1,9}))?", part)
        if found is None:
            return ()
        first = int(found[1])
        last = int(found[2] or first)
        if last - first >= MOST_MEMBERS - len(ranks):
            return ()
        ranks += range(first, last + 1)
    return tuple(ranks)


def _text(content: bytes) -> str:
    return content.split(b"\0", 1)[0].decode(errors="replace")
