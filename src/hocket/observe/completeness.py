"""How much of a process's I/O its recorder has seen, against the kernel's own counters.

The kernel counts the bytes of all read and write calls of a process (``rchar`` and ``wchar`` of ``/proc/PID/io``), on
files, pipes, sockets and terminals. The hooks record those of files and count the others. What is missing went around
the hooks: the dynamic loader's reads, system calls without the C library.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket import _native
from hocket.comm.policy import format_nbytes
from hocket.trace import ReadWritten, RecorderSnapshot

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_IO_LAYER = 3
_COUNTED_ROUTES = [_native.IO_ROUTE_NAMES.index(name) for name in ("posix", "vectored", "stdio")]
"""Calls of the other routes contain calls of these."""
_READ, _WRITE, _COPY = (_native.IO_NAMES.index(name) for name in ("read", "write", "copy"))
_TARGET = 1
_FSSPEC = _native.IO_ROUTE_NAMES.index("fsspec")
_LOCAL_FILE = 2


@dataclass(frozen=True)
class IoAccount:
    """Bytes that were read, or bytes that were written.

    Args:
        recorded_nbytes: in events of files.
        other_nbytes: seen on pipes, sockets, terminals and files of the kernel, which have no events.
        kernel_nbytes: all, as the kernel has counted.

    Examples:
        >>> from hocket import observe
        >>> account = observe.IoAccount(recorded_nbytes=800, other_nbytes=100, kernel_nbytes=1000)
        >>> account.share, account.missing_nbytes
        (0.9, 100)
    """

    recorded_nbytes: int
    other_nbytes: int
    kernel_nbytes: int

    @property
    def share(self) -> float | None:
        """Seen part of all bytes; None: the kernel has counted none."""
        return (self.recorded_nbytes + self.other_nbytes) / self.kernel_nbytes if self.kernel_nbytes > 0 else None

    @property
    def missing_nbytes(self) -> int:
        """Bytes that the kernel has counted and nobody has seen; negative if more was seen."""
        return self.kernel_nbytes - self.recorded_nbytes - self.other_nbytes


@dataclass(frozen=True)
class IoCompleteness:
    """How much of the I/O of a process, or of several, was seen.

    Args:
        read, written: the bytes; None: unavailable.
        as_of: "end" of the process, or of `record_io`; "now"; "last look" at a process that was killed; "" if
            unavailable.
        reason: why it is unavailable.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["cat", "/etc/hostname"], "run-complete")
        >>> (process,) = observe.open_run("run-complete").processes
        >>> process.io.as_of, process.io.read.share, process.io.written.missing_nbytes
        ('end', 1.0, 0)
    """

    read: IoAccount | None
    written: IoAccount | None
    as_of: str
    reason: str


@dataclass(frozen=True)
class RunCompleteness:
    """How much of the I/O of all processes of a run was seen.

    Args:
        total: of all processes whose counters are available.
        worst_read, worst_written: the process with most missing bytes, such as "process 4711 (python train.py)"; ""
            if nothing is missing.
        num_unavailable: how many processes are not in the total.

    Examples:
        >>> from hocket import observe
        >>> recording = observe.record_run(["cat", "/etc/hostname"], "run-whole")
        >>> recording.io.total.read.share, recording.io.num_unavailable
        (1.0, 0)
    """

    total: IoCompleteness
    worst_read: str
    worst_written: str
    num_unavailable: int


def completeness_of(
    snapshot: RecorderSnapshot, counters: ReadWritten | None = None, last: IoCompleteness | None = None
) -> IoCompleteness:
    """Return how much of a process's I/O was seen.

    Args:
        snapshot: its recorder.
        counters: what the kernel says now (``rchar`` and ``wchar``) of a process that runs; None: it has ended.
        last: what this function returned while the process ran, for a process that was killed.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> with hk.init():
        ...     snapshot = hk.trace.find_recorders(os.getpid())[0].read()
        >>> observe.completeness_of(snapshot).reason
        'file I/O was not recorded'
    """
    totals = snapshot.io
    if totals.state == "none":
        return unavailable("file I/O was not recorded")
    if totals.state == "unreadable":
        return unavailable(f"/proc/{snapshot.owner.pid}/io: {totals.reason or 'it cannot be read'}")
    as_of, end = ("end", totals.at_end) if totals.state == "ended" else ("now", counters)
    if end is None:
        return last or unavailable("it was killed before anybody had looked at its counters, or they are not readable")
    recorded = recorded_bytes(snapshot)
    read = IoAccount(
        recorded.read - totals.uncounted.read,
        totals.other.read,
        end.read - totals.at_begin.read - totals.excluded.read,
    )
    written = IoAccount(
        recorded.written - totals.uncounted.written,
        totals.other.written,
        end.written - totals.at_begin.written - totals.excluded.written,
    )
    if read.kernel_nbytes < 0 or written.kernel_nbytes < 0:
        return unavailable("the counters in the recorder contradict each other")
    return IoCompleteness(read, written, as_of, "")


def unavailable(reason: str) -> IoCompleteness:
    """Return a figure that is unavailable."""
    return IoCompleteness(None, None, "", reason)


def recorded_bytes(snapshot: RecorderSnapshot) -> ReadWritten:
    """Return the bytes of all events of files, exact also where events were left out.

    Calls of MPI-IO and of fsspec are not counted, as they consist of others.

    Examples:
        >>> import os
        >>> from hocket import observe
        >>> _ = observe.record_run(["cp", "/etc/hostname", "copy"], "run-of-cp")
        >>> (process,) = observe.open_run("run-of-cp").processes
        >>> observe.recorded_bytes(process.snapshot).written == os.stat("/etc/hostname").st_size
        True
    """
    entries = _of_io(snapshot)
    route, kind, is_target = entries["backend"], entries["kind"], entries["algorithm"] == _TARGET
    is_counted = (route[:, None] == _COUNTED_ROUTES).any(axis=1)
    is_read = is_counted & ((kind == _READ) | ((kind == _COPY) & ~is_target))
    is_write = is_counted & ((kind == _WRITE) | ((kind == _COPY) & is_target))
    return ReadWritten(int(entries["nbytes"][is_read].sum()), int(entries["nbytes"][is_write].sum()))


def counted_io(snapshot: RecorderSnapshot) -> NDArray[np.void]:
    """Return the totals of I/O in which each byte is once.

    What fsspec did with local files is left out where the hooks have seen the same bytes.
    """
    entries = _of_io(snapshot)
    if snapshot.io.state == "none":
        return entries
    is_local = (entries["backend"] == _FSSPEC) & (entries["algorithm"] == _LOCAL_FILE)
    counted: NDArray[np.void] = entries[~is_local]
    return counted


def _of_io(snapshot: RecorderSnapshot) -> NDArray[np.void]:
    entries: NDArray[np.void] = snapshot.histograms[snapshot.histograms["layer"] == _IO_LAYER]
    return entries


def format_share(share: float | None) -> str:
    """Return a share with three digits behind the point; below 1 it stays below 1."""
    if share is None:
        return "no bytes"
    return f"{min(share, 0.999) if share < 1 else share:.3f}"


def describe_io(what: str, account: IoAccount) -> str:
    """Return a line such as "reads: 0.998 of 12.0 MiB were seen, 21.3 KiB were not"."""
    if account.share is None:
        return f"{what}: no bytes"
    missing = account.missing_nbytes
    rest = "" if not missing else f", {format_nbytes(missing)} were not" if missing > 0 else ""
    more = f", {format_nbytes(-missing)} more than the kernel counted" if missing < 0 else ""
    return f"{what}: {format_share(account.share)} of {format_nbytes(account.kernel_nbytes)} were seen{rest}{more}"


def total_of(
    processes: Iterable[tuple[str, IoCompleteness]], reason: str = "no process has left a recorder"
) -> RunCompleteness:
    """Return the sum of several processes, each with its name; `reason`: why there may be none."""
    known, reasons = [], []
    for name, io in processes:
        if io.read is None or io.written is None:
            reasons.append(io.reason)
        else:
            known.append((name, io.read, io.written))
    if not known:
        total = unavailable(reasons[0] if reasons else reason)
        return RunCompleteness(total, "", "", len(reasons))
    reads, writes = [(name, read) for name, read, _ in known], [(name, written) for name, _, written in known]
    total = IoCompleteness(_sum(reads), _sum(writes), "end", "")
    return RunCompleteness(total, _worst(reads), _worst(writes), len(reasons))


def _sum(accounts: Sequence[tuple[str, IoAccount]]) -> IoAccount:
    return IoAccount(
        sum(each.recorded_nbytes for _, each in accounts),
        sum(each.other_nbytes for _, each in accounts),
        sum(each.kernel_nbytes for _, each in accounts),
    )


def _worst(accounts: Sequence[tuple[str, IoAccount]]) -> str:
    name, account = max(accounts, key=lambda each: abs(each[1].missing_nbytes))
    return name if account.missing_nbytes else ""


def account_numbers(io: IoCompleteness) -> list[int]:
    """Return the numbers of an available figure, for a file."""
    return [
        number
        for each in (io.read, io.written)
        if each is not None
        for number in (each.recorded_nbytes, each.other_nbytes, each.kernel_nbytes)
    ]


def last_look(numbers: Sequence[int]) -> IoCompleteness:
    """Return the figure that has these numbers, those of `account_numbers`."""
    return IoCompleteness(IoAccount(*numbers[:3]), IoAccount(*numbers[3:]), "last look", "")
