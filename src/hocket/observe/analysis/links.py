"""What went through the network devices of a run's hosts: whose bytes, how fast, and for how long they were the limit.

The bytes of a device are those of its connections and of their headers. What is left came from connections that are not
TCP, not of this host, or so short that nobody saw whose they were.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hocket.observe.analysis.connections import ConnectionOwners, moved_since_begin, rows_of_ends
from hocket.observe.connections import UNKNOWN_OWNER

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.connections import HostConnections
    from hocket.observe.saved import ObservedRun
    from hocket.observe.series import SavedSeries

_HEADER_NBYTES = 14 + 20 + 32
"""Of a packet: Ethernet, IPv4, and TCP with time stamps. A device that cuts packets itself counts the whole one."""
_LEAST_LIMITED_SHARE = 0.5
"""Of the time between two samples; then the device's rate there counts as the rate at its limit."""
_LEAST_STREAM_NBYTES = 64 << 10
"""Between two samples; with less, a connection waits for answers that are late, and not for bandwidth."""
_COUNTS = ("sent_nbytes", "resent_nbytes", "busy_s", "receiver_limited_s", "buffer_limited_s")


@dataclass(frozen=True)
class LinkLoad:
    """A network device of a host during a run.

    Args:
        host: its host.
        device: its name.
        seconds: between its first and its last sample.
        sent_nbytes, received_nbytes: bytes of the device, with headers.
        rank_nbytes: sent bytes of data between processes of the run.
        other_nbytes: sent bytes of data of the run's processes to others, for example to a file server.
        foreign_nbytes: sent bytes of data of other programs whose connections were seen.
        header_nbytes: estimate for the headers of the sent packets.
        limited_s: seconds in which a connection of the run to another host waited for the network here.
        limited_nbytes_s: bytes per second that the device sent meanwhile; NaN: it was never the limit.
        speed_nbytes_s: what the device says that it can send; NaN: it does not say.
        queue: the queue that limits it, such as "tbf 8001:"; "": none is known.
        queue_nbytes_s: what that queue lets through; NaN: none.
        num_waits: how often packets had to wait for that queue.
        num_drops: packets that queues of the device and the device itself dropped.
        rtt_ratio: round trip of the run's connections while the device was the limit, over their least one; the median
            over the samples.
        resent_nbytes: bytes of data that were sent again.
        peers: hosts and devices at the other ends of the ranks' connections, such as "eth0 of node-2".
        other_process: place in `ObservedRun.processes` of the process that sent most of the other bytes; None: none.
        other_end: the address to which it sent most of them.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["sleep", "0.3"], "run-with-devices", interval_s=0.1)
        >>> loads = observe.link_loads(observe.open_run("run-with-devices"))
        >>> all(each.rank_nbytes == 0 for each in loads)
        True
    """

    host: str
    device: str
    seconds: float
    sent_nbytes: float
    received_nbytes: float
    rank_nbytes: float
    other_nbytes: float
    foreign_nbytes: float
    header_nbytes: float
    limited_s: float
    limited_nbytes_s: float
    speed_nbytes_s: float
    queue: str
    queue_nbytes_s: float
    num_waits: float
    num_drops: float
    rtt_ratio: float
    resent_nbytes: float
    peers: tuple[str, ...]
    other_process: int | None
    other_end: str

    @property
    def explained_nbytes(self) -> float:
        """Bytes of the connections that were seen, and of headers."""
        data = self.rank_nbytes + self.other_nbytes + self.foreign_nbytes + self.resent_nbytes
        return data + self.header_nbytes

    @property
    def residual_nbytes(self) -> float:
        """Sent bytes that no connection that was seen explains."""
        return max(self.sent_nbytes - self.explained_nbytes, 0.0)


def link_loads(run: ObservedRun) -> tuple[LinkLoad, ...]:
    """Return the load of each network device with at least two samples, those that limited the run longest first.

    Args:
        run: from `open_run`.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["sleep", "0.3"], "run-of-links", interval_s=0.1)
        >>> "lo" in {each.device for each in observe.link_loads(observe.open_run("run-of-links"))}
        True
    """
    hosts = {each.host: each for each in run.connections}
    owners = ConnectionOwners(run)
    found = [
        _load(series, _queues(run, series), hosts.get(series.host), owners)
        for series in run.host_series
        if series.source == "network" and len(series.rows) > 1
    ]
    return tuple(sorted(found, key=lambda each: (-each.limited_s, -each.sent_nbytes)))


def _queues(run: ObservedRun, device: SavedSeries) -> list[SavedSeries]:
    """The queues of a device; names are those of device, kind and number."""
    return [
        each
        for each in run.host_series
        if (each.host, each.source) == (device.host, "queue") and each.name.split(" ")[0] == device.name
    ]


def _load(
    series: SavedSeries, queues: list[SavedSeries], host: HostConnections | None, owners: ConnectionOwners
) -> LinkLoad:
    import numpy as np

    rows, names = series.rows, series.rows.dtype.names or ()
    times = rows["time_ns"].astype(np.float64)
    changes = {name: _steps(rows[name]) for name in ("sent_nbytes", "received_nbytes", "sent_packets", "send_drops")}
    carried = _carried(host, series.name, times, owners)
    seconds = np.diff(times) * 1e-9
    limited = np.minimum(carried.limited_s, seconds)
    is_limited = limited >= _LEAST_LIMITED_SHARE * seconds
    shaper = next((each for each in queues if np.isfinite(each.rows["limit_nbytes_s"]).any()), None)
    drops = [changes["send_drops"], *(_steps(each.rows["drops"]) for each in queues)]
    return LinkLoad(
        host=series.host,
        device=series.name,
        seconds=float(seconds.sum()),
        sent_nbytes=float(changes["sent_nbytes"].sum()),
        received_nbytes=float(changes["received_nbytes"].sum()),
        rank_nbytes=carried.rank_nbytes,
        other_nbytes=carried.other_nbytes,
        foreign_nbytes=carried.foreign_nbytes,
        header_nbytes=float(changes["sent_packets"].sum()) * _HEADER_NBYTES,
        limited_s=float(limited.sum()),
        limited_nbytes_s=float(changes["sent_nbytes"][is_limited].sum() / seconds[is_limited].sum())
        if is_limited.any()
        else np.nan,
        speed_nbytes_s=float(rows["speed_nbytes_s"][-1]) if "speed_nbytes_s" in names else np.nan,
        queue="" if shaper is None else shaper.name.partition(" ")[2],
        queue_nbytes_s=np.nan if shaper is None else float(np.nanmax(shaper.rows["limit_nbytes_s"])),
        num_waits=0.0 if shaper is None else float(_steps(shaper.rows["waits"]).sum()),
        num_drops=float(sum(each.sum() for each in drops)),
        rtt_ratio=float(np.median(carried.rtt_ratios)) if carried.rtt_ratios else np.nan,
        resent_nbytes=carried.resent_nbytes,
        peers=tuple(sorted(carried.peers)),
        other_process=carried.largest_other[1],
        other_end=carried.largest_other[2],
    )


def _steps(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Differences of a count of the kernel; NaN where it is less than before: it was reset or has wrapped."""
    import numpy as np

    steps = np.diff(counts)
    return np.where(steps >= 0, steps, np.nan)


@dataclass
class _Carried:
    """What the connections through a device did."""

    limited_s: NDArray[np.float64]
    rank_nbytes: float = 0.0
    other_nbytes: float = 0.0
    foreign_nbytes: float = 0.0
    resent_nbytes: float = 0.0
    rtt_ratios: list[float] = field(default_factory=list)
    peers: set[str] = field(default_factory=set)
    largest_other: tuple[float, int | None, str] = (0.0, None, "")


def _carried(
    host: HostConnections | None, device: str, times: NDArray[np.float64], owners: ConnectionOwners
) -> _Carried:
    import numpy as np

    found = _Carried(np.zeros(len(times) - 1))
    for end, rows in rows_of_ends(host) if host is not None else ():
        if end.device != device or host is None or end.process == UNKNOWN_OWNER:
            continue
        process, peer = owners.process(host.host, end), owners.peer(host.host, end)
        is_own = process is not None
        counts = {name: moved_since_begin(host, rows, name, is_own) for name in _COUNTS}
        at = rows["time_ns"].astype(np.float64)
        sent = float(np.nan_to_num(np.interp(times[-1], at, counts["sent_nbytes"] - counts["resent_nbytes"], left=0.0)))
        found.resent_nbytes += float(np.nan_to_num(counts["resent_nbytes"][-1]))
        if not is_own:
            found.foreign_nbytes += sent
            continue
        if peer is not None:
            found.rank_nbytes += sent
            found.peers.add(f"{peer.device} of {peer.host}")
        else:
            found.other_nbytes += sent
            found.largest_other = max(found.largest_other, (sent, process, end.remote), key=lambda each: each[0])
        if peer is not None and peer.host == host.host:
            continue  # through memory: the processors are the limit there
        waited = counts["busy_s"] - counts["receiver_limited_s"] - counts["buffer_limited_s"]
        waits, moved = (
            np.diff(np.interp(times, at, np.nan_to_num(each), left=0.0)) for each in (waited, counts["sent_nbytes"])
        )
        found.limited_s = np.maximum(found.limited_s, np.where(moved >= _LEAST_STREAM_NBYTES, waits, 0.0))
        is_stream = np.diff(counts["sent_nbytes"]) >= _LEAST_STREAM_NBYTES
        is_limited = is_stream & (np.diff(waited) >= _LEAST_LIMITED_SHARE * np.diff(at) * 1e-9)
        ratios = rows["rtt_s"][1:][is_limited] / rows["least_rtt_s"][1:][is_limited]
        found.rtt_ratios += ratios[np.isfinite(ratios)].tolist()
    return found
