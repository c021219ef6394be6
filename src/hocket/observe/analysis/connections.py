"""The TCP connections of a recorded run: between which ranks, how much they carried, and who limited them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.connections import ConnectionEnd, HostConnections
    from hocket.observe.saved import ObservedRun

_LOCAL = ("127.", "[::1]")
_LIMITS = ("receiver", "own buffer", "network")
_COUNTS = (
    "sent_nbytes", "resent_nbytes", "received_nbytes", "sent_segments", "resent_segments", "busy_s",
    "receiver_limited_s", "buffer_limited_s",
)  # fmt: skip


@dataclass(frozen=True)
class RunConnection:
    """One end of a TCP connection during a run.

    Args:
        host: its host.
        process: place in `ObservedRun.processes` of the process that has it; None: another program.
        peer: place of the process at the other end; None: another program, or one that was not recorded.
        local, remote: address and port of the ends.
        device: network device through which it sends; "": unknown.
        first_s, last_s: seconds since the run began of its first and last sample.
        sent_nbytes, resent_nbytes, received_nbytes: bytes of data; those that were sent again are not in "sent".
        sent_segments, resent_segments: packets, the pure acknowledgements among them.
        busy_s: seconds in which it had data to send or waited for the acknowledgement.
        receiver_limited_s: those of them in which the receiver's window was full: it did not read fast enough.
        buffer_limited_s: those in which the sender's buffer was too small for the distance.
        network_limited_s: the rest: latency and bandwidth of the network, and what else it carried.
        rtt_s, least_rtt_s: median of the samples of the round trip, and the least one.

    Numbers that the kernel does not count are NaN.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-without-connections")
        >>> found = observe.connections_of(observe.open_run("run-without-connections"))
        >>> [each for each in found if each.process is not None]
        []
    """

    host: str
    process: int | None
    peer: int | None
    local: str
    remote: str
    device: str
    first_s: float
    last_s: float
    sent_nbytes: float
    resent_nbytes: float
    received_nbytes: float
    sent_segments: float
    resent_segments: float
    busy_s: float
    receiver_limited_s: float
    buffer_limited_s: float
    network_limited_s: float
    rtt_s: float
    least_rtt_s: float

    @property
    def limited_by(self) -> str | None:
        """What limited it in most of its busy time: "receiver", "own buffer" or "network"; None: it was never busy."""
        parts = dict(
            zip(_LIMITS, (self.receiver_limited_s, self.buffer_limited_s, self.network_limited_s), strict=True)
        )
        return max(_LIMITS, key=lambda each: parts[each]) if self.busy_s > 0 else None


def connections_of(run: ObservedRun) -> tuple[RunConnection, ...]:
    """Return the TCP connections of a run's processes, and those of other programs that moved much, busiest first.

    Args:
        run: from `open_run`.

    Examples:
        >>> import sys
        >>> from hocket import observe
        >>> program = (
        ...     "import socket, time; server = socket.create_server(('127.0.0.1', 0));"
        ...     "one = socket.create_connection(server.getsockname()); one.sendall(bytes(1000));"
        ...     "other = server.accept()[0]; other.recv(1000); time.sleep(0.5)"
        ... )
        >>> _ = observe.record_run([sys.executable, "-c", program], "run-of-a-connection", interval_s=0.1)
        >>> ends = observe.connections_of(observe.open_run("run-of-a-connection"))
        >>> sorted(each.sent_nbytes for each in ends if each.process == 0)
        [0.0, 1000.0]
    """
    owners = ConnectionOwners(run)
    found = [_connection(host, end, rows, owners) for host in run.connections for end, rows in rows_of_ends(host)]
    return tuple(sorted(found, key=lambda each: -each.sent_nbytes))


def moved_since_begin(host: HostConnections, rows: NDArray[np.void], name: str, is_own: bool) -> NDArray[np.float64]:
    """Return a count of a connection by sample, from the begin of the run.

    What another program's connection had counted when it was first seen, at the begin, is left out.

    Args:
        host: the connections of its host.
        rows: of the connection, by time.
        name: of the count.
        is_own: whether it belongs to a process of the run.
    """
    import numpy as np

    counts = rows[name].astype(np.float64)
    was_there = not is_own and len(rows) > 0 and rows["time_ns"][0] == host.began_ns
    return counts - (counts[0] if was_there else 0.0)


class PeerEnd(NamedTuple):
    """The other end of a connection: its process, as a place in `ObservedRun.processes`, its host and its device."""

    process: int
    host: str
    device: str


class ConnectionOwners:
    """Which processes of a run are at the ends of its connections.

    Args:
        run: from `open_run`.
    """

    def __init__(self, run: ObservedRun) -> None:
        self._processes = {(process.host, process.name): place for place, process in enumerate(run.processes)}
        self._ends = {
            _key(host.host, end.local, end.remote): PeerEnd(
                self._processes[host.host, end.process], host.host, end.device
            )
            for host in run.connections
            for end in host.ends
            if (host.host, end.process) in self._processes
        }

    def process(self, host: str, end: ConnectionEnd) -> int | None:
        """Return the place in `ObservedRun.processes` of the process that has an end; None: another program."""
        return self._processes.get((host, end.process))

    def peer(self, host: str, end: ConnectionEnd) -> PeerEnd | None:
        """Return what is at the other end; None: no process of the run."""
        return self._ends.get(_key(host, end.remote, end.local))


def _key(host: str, local: str, remote: str) -> tuple[str, str, str]:
    """Addresses of an end; those of the loopback device are the same on all hosts."""
    return host if local.startswith(_LOCAL) else "", local, remote


def rows_of_ends(host: HostConnections) -> Iterator[tuple[ConnectionEnd, NDArray[np.void]]]:
    """Return the connections of a host that have rows, each with its own by time."""
    import numpy as np

    places = host.rows["connection"].astype(np.int64)
    order = np.argsort(places, kind="stable")
    bounds = np.searchsorted(places[order], np.arange(len(host.ends) + 1))
    for place, end in enumerate(host.ends):
        if bounds[place] < bounds[place + 1]:
            yield end, host.rows[order[bounds[place] : bounds[place + 1]]]


def _connection(
    host: HostConnections, end: ConnectionEnd, rows: NDArray[np.void], owners: ConnectionOwners
) -> RunConnection:
    import numpy as np

    process, peer = owners.process(host.host, end), owners.peer(host.host, end)
    last = {name: float(moved_since_begin(host, rows, name, process is not None)[-1]) for name in _COUNTS}
    limited = last["receiver_limited_s"] + last["buffer_limited_s"]
    rtt = rows["rtt_s"][rows["rtt_s"] > 0]
    return RunConnection(
        host=host.host,
        process=process,
        peer=None if peer is None else peer.process,
        local=end.local,
        remote=end.remote,
        device=end.device,
        first_s=float(host.clock.seconds_at_ns(rows["time_ns"][0])),
        last_s=float(host.clock.seconds_at_ns(rows["time_ns"][-1])),
        sent_nbytes=last["sent_nbytes"] - last["resent_nbytes"],
        resent_nbytes=last["resent_nbytes"],
        received_nbytes=last["received_nbytes"],
        sent_segments=last["sent_segments"],
        resent_segments=last["resent_segments"],
        busy_s=last["busy_s"],
        receiver_limited_s=last["receiver_limited_s"],
        buffer_limited_s=last["buffer_limited_s"],
        network_limited_s=max(last["busy_s"] - limited, 0.0) if np.isfinite(last["busy_s"]) else np.nan,
        rtt_s=float(np.median(rtt)) if len(rtt) else np.nan,
        least_rtt_s=float(rows["least_rtt_s"][-1]),
    )
