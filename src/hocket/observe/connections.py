"""The TCP connections of a run: who is at their ends, and what the kernel counted for them while the run went on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING

from hocket.errors import RecorderError
from hocket.observe.network_devices import device_to
from hocket.observe.run_clock import RunClock
from hocket.observe.series import SeriesWriter, read_series
from hocket.observe.tcp_sockets import TCP_NUMBERS, TcpSocket, TcpSockets
from hocket.typed_json import record_from
from hocket.versioned_json import Head
from hocket.whole_file import write_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONNECTIONS_FILE, COUNTS_FILE = "connections.json", "connections.series"
_HEAD = Head("hocket connections, version ", 1, RecorderError, title="a list of connections", most_nbytes=64 << 20)
_NUMBERS = ("connection", *TCP_NUMBERS)
_MOST_CONNECTIONS = 65_536
UNKNOWN_OWNER = "?"
_LEAST_FOREIGN_NBYTES = 65_536
"""A connection of another program is worth a row when it has moved so many bytes."""


@dataclass(frozen=True)
class ConnectionEnd:
    """One end of a TCP connection.

    Args:
        process: name of the process in the run, `SavedProcess.name`; "": another program of the host; "?": it was
            closed before anybody saw whose it was.
        local, remote: address and port of this end and of the other one, such as "10.0.0.1:29500".
        device: the network device through which it sends; "": unknown.

    Examples:
        >>> from hocket import observe
        >>> observe.ConnectionEnd("", "10.0.0.1:4000", "10.0.0.2:29500", "eth0").device
        'eth0'
    """

    process: str
    local: str
    remote: str
    device: str


@dataclass(frozen=True)
class HostConnections:
    """The TCP connections of one host while a run was recorded.

    Args:
        host: its name.
        ends: of the connections.
        rows: structured array by time: "time_ns" of the monotonic clock of the host; "connection", a place in `ends`;
            and `TCP_NUMBERS` as float64, counts since the connection was made. A connection has a row when something
            has changed, and a last one when it was closed. NaN: the kernel does not count it.
        began_ns: time of the first sample; what other programs' connections had counted by then is not of the run.
        clock: its `seconds_at_ns` converts the times to seconds since the run began.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-without-network")
        >>> hosts = observe.open_run("run-without-network").connections
        >>> [end for host in hosts for end in host.ends if end.process not in ("", "?")]
        []
    """

    host: str
    ends: tuple[ConnectionEnd, ...]
    rows: NDArray[np.void]
    began_ns: int
    clock: RunClock


class ConnectionSampler:
    """Writes what the kernel counts for the connections of a run's processes.

    Connections of other programs have rows once they have moved 64 KiB; their process is "".

    Args:
        target: folder of the run.
    """

    def __init__(self, target: Path) -> None:
        self.problems: set[str] = set()
        self._target = target
        self._places: dict[int, int] = {}
        """Of cookies, in `_ends`."""
        self._ends: list[ConnectionEnd] = []
        self._last: dict[int, tuple[float | None, ...]] = {}
        self._processes: dict[int, str] = {}
        """Of inodes of sockets that the run's processes have or had open; "": it had it only before its exec."""
        self._looked_at: set[int] = set()
        self._looked_for: set[str] = set()
        self._doubtful: set[int] = set()
        """Inodes of open sockets that their process has no longer: they are another's, or were closed just now."""
        self._is_look_due = False
        self._devices: dict[str, str] = {}
        self._writer: SeriesWriter | None = None
        self._sockets: TcpSockets | None = None
        self._began_ns: int | None = None

    def sample(self, processes: Mapping[str, int]) -> None:
        """Write a row of each connection that has changed.

        Args:
            processes: numbers of the run's processes that run, by name.
        """
        try:
            self._sockets = self._sockets or TcpSockets()
            found = list(self._sockets.open_sockets())
            self._look_for_owners({each.inode for each in found}, processes)
            now_ns = monotonic_ns()
            if self._began_ns is None:
                self._began_ns = now_ns
        except RecorderError as error:
            self.problems.add(f"TCP connections: {error}")
            return
        closed = self._closed(self._sockets)
        rows = [row for each in (*found, *closed) if (row := self._changed(each)) is not None]
        for each in closed:
            self._last.pop(each.cookie, None)
        if rows:
            if self._writer is None:
                self._writer = SeriesWriter(self._target / COUNTS_FILE, "connections", "TCP", _NUMBERS)
            self._writer.append_all(now_ns, rows)

    def _closed(self, sockets: TcpSockets) -> list[TcpSocket]:
        found: list[TcpSocket] = []
        try:
            found.extend(sockets.closed_sockets())
        except RecorderError as error:
            self.problems.add(f"TCP connections that were closed: {error}")
        return found

    def close(self) -> None:
        """Close the sockets to the kernel."""
        if self._sockets is not None:
            self._sockets.close()

    def save(self) -> None:
        """Write which connections there were.

        Raises:
            OSError: the file cannot be written.
        """
        ends = [asdict(each) for each in self._ends]
        text = json.dumps({_HEAD.key: _HEAD.text, "began_ns": self._began_ns or 0, "connections": ends})
        write_text(self._target / CONNECTIONS_FILE, text)

    def _changed(self, found: TcpSocket) -> dict[str, float | None] | None:
        """Return the row of a connection; None: nothing has changed, or it is not worth one."""
        process = self._processes.get(found.inode, "") if found.inode else UNKNOWN_OWNER
        place = self._places.get(found.cookie)
        if place is not None and process not in (UNKNOWN_OWNER, self._ends[place].process):
            self._ends[place] = replace(self._ends[place], process=process)
        values = tuple(found.numbers.values())
        if self._last.get(found.cookie) == values:
            return None
        if place is None:
            moved = (found.numbers["sent_nbytes"] or 0) + (found.numbers["received_nbytes"] or 0)
            if process in ("", UNKNOWN_OWNER) and moved < _LEAST_FOREIGN_NBYTES:
                return None
            if len(self._ends) == _MOST_CONNECTIONS:
                self.problems.add(f"more than {_MOST_CONNECTIONS} TCP connections: later ones are left out")
                return None
            place = self._places[found.cookie] = len(self._ends)
            self._ends.append(ConnectionEnd(process, found.local, found.remote, self._device(found.remote)))
        self._last[found.cookie] = values
        return {"connection": place, **found.numbers}

    def _look_for_owners(self, inodes: set[int], processes: Mapping[str, int]) -> None:
        """Look at the open files of the processes if there is a new socket or a new process, and once more after it.

        A process that is between fork and exec still has the sockets of the process that started it.
        """
        is_new = not processes.keys() <= self._looked_for
        if inodes <= self._looked_at and not is_new and not self._is_look_due:
            return
        self._looked_at, self._looked_for = inodes, set(processes)
        found = {name: _sockets_of(pid) for name, pid in processes.items()}
        owners = {inode: name for name in reversed(found) for inode in found[name]}
        for inode in self._doubtful & inodes:
            if inode not in found.get(self._processes[inode], ()):
                self._processes[inode] = owners.get(inode, "")
        for inode, name in owners.items():
            self._processes[inode] = self._processes.get(inode) or name
        self._doubtful = {
            inode for inode in inodes & self._processes.keys()
            if (name := self._processes[inode]) and inode not in found.get(name, ())
        }  # fmt: skip
        self._is_look_due = is_new or bool(self._doubtful)

    def _device(self, remote: str) -> str:
        address = remote.rpartition(":")[0].strip("[]")
        if address not in self._devices:
            self._devices[address] = device_to(address) or ""
        return self._devices[address]


def _sockets_of(pid: int) -> set[int]:
    """Return the inodes of the sockets that a process has open; none: it has ended, or belongs to another user."""
    found: set[int] = set()
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for number in os.listdir(folder):
            with suppress(OSError):
                link = os.readlink(f"{folder}/{number}")
                if link.startswith("socket:["):
                    found.add(int(link[8:-1]))
    return found


def read_connections(folder: Path, host: str, clock: RunClock, problems: list[str]) -> HostConnections | None:
    """Return the connections of a host of a run; None: none were saved. Appends what is wrong to `problems`."""
    import numpy as np

    path = folder / CONNECTIONS_FILE
    if not path.exists():
        return None
    try:
        _, content = _HEAD.load(path)
        ends, began_ns = _ends(content.get("connections"), path), content.get("began_ns")
        if type(began_ns) is not int or not 0 <= began_ns < 1 << 63:
            raise RecorderError(f'{path}: "began_ns" must be nanoseconds, not {began_ns!r:.80}')
    except RecorderError as error:
        problems.append(str(error))
        return None
    series = read_series(folder / COUNTS_FILE, host, clock, problems)
    layout = np.dtype([("time_ns", "<i8"), *((name, "<f8") for name in _NUMBERS)])
    rows = np.zeros(0 if series is None else len(series.rows), layout)
    if series is not None:
        for name in layout.names or ():
            rows[name] = series.rows[name] if name in (series.rows.dtype.names or ()) else np.nan
    is_known = (rows["connection"] >= 0) & (rows["connection"] < len(ends))
    if not is_known.all():
        problems.append(f"{folder / COUNTS_FILE}: {int((~is_known).sum())} rows are of no connection and are left out")
    return HostConnections(host, ends, rows[is_known], began_ns, clock)


def _ends(found: object, path: Path) -> tuple[ConnectionEnd, ...]:
    if not isinstance(found, list) or len(found) > _MOST_CONNECTIONS:
        raise RecorderError(f'{path}: "connections" must be a list of at most {_MOST_CONNECTIONS}')
    try:
        return tuple(record_from(ConnectionEnd, each) for each in found)
    except KeyError as error:
        raise RecorderError(f"{path}: a connection has no {error}") from None
    except TypeError as error:
        raise RecorderError(f"{path}: in a connection, {error}") from None
