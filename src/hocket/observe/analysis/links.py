"""What went through the network devices of a run's hosts: whose bytes, how fast, and for how long they were the limit.

The bytes of a device are those of its connections and of their headers. What is left came from connections that are not
TCP, not of this host, or so short that nobody saw whose they were.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hocket.observe.analysis.connections import ConnectionOwners, moved_since_begin, rows_of_ends
from hocket.observe.connections import UNKNOWN_OWNER
from hocket.observe.neighbors import SOURCE
from hocket.observe.network_devices import ROOT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.connections import HostConnections
    from hocket.observe.saved import ObservedRun
    from hocket.observe.series import SavedSeries

_HEADER_NBYTES = 14 + 20 + 32
"""Of a packet: Ethernet, IPv4, and TCP with time stamps. A device that cuts packets itself counts the whole one."""
_LOOPBACK = "lo"
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
        rank_nbytes: sent bytes of data between processes of the run until the last sample; interpolated where that lies
            between two samples of a connection. So are the next two.
        other_nbytes: sent bytes of data of the run's processes to others, for example to a file server.
        foreign_nbytes: sent bytes of data of other programs whose connections were seen.
        header_nbytes: estimate for the headers of the sent packets.
        limited_s: seconds in which a connection between ranks on different hosts waited for the network here.
        limited_nbytes_s: bytes per second that the device sent meanwhile; NaN: it was never the limit.
        speed_nbytes_s: what the device says that it can send; NaN: it does not say.
        queue: the queue that limits it, such as "tbf 8001"; "": none is known.
        queue_nbytes_s: what that queue lets through; NaN: none.
        num_waits: how often packets had to wait for that queue.
        num_drops: packets that queues of the device and the device itself dropped.
        rtt_ratio: round trip of the run's connections while the device was the limit, over their least one; the median
            over the samples.
        resent_nbytes: bytes of data that were sent again.
        peers: devices at the other ends of the ranks' connections that carried 64 KiB, such as "eth0 of node-2".
        other_process: place in `ObservedRun.processes` of the process that sent most of the other bytes; None: none.
        other_end: the address to which it sent most of them.
        neighbor: what the device is connected to, such as "leaf-7 port Ethernet1/7" (LLDP); "": that is not known.

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
    neighbor: str

    @property
    def explained_nbytes(self) -> float:
        """Bytes of the connections that were seen, and of headers."""
        data = self.rank_nbytes + self.other_nbytes + self.foreign_nbytes + self.resent_nbytes
        return data + self.header_nbytes

    @property
    def residual_nbytes(self) -> float:
        """Sent bytes that no connection that was seen explains."""
        return max(self.sent_nbytes - self.explained_nbytes, 0.0)


def link_loads(run: ObservedRun, span: tuple[float, float] | None = None) -> tuple[LinkLoad, ...]:
    """Return the load of each network device with at least two samples, those that limited the run longest first.

    Args:
        run: from `open_run`.
        span: seconds since the run began between which a device can be the limit; None: the whole run.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["sleep", "0.3"], "run-of-links", interval_s=0.1)
        >>> "lo" in {each.device for each in observe.link_loads(observe.open_run("run-of-links"))}
        True
    """
    hosts = {each.host: each for each in run.connections}
    owners = ConnectionOwners(run)
    found = [
        replace(
            _load(series, _queues(run, series), hosts.get(series.host), owners, span), neighbor=_neighbor(run, series)
        )
        for series in run.host_series
        if series.source == "network" and len(series.rows) > 1
    ]
    return tuple(sorted(found, key=lambda each: (-each.limited_s, -each.sent_nbytes)))


def _queues(run: ObservedRun, device: SavedSeries) -> list[SavedSeries]:
    """The queues that all packets of a device go through; names are those of device, kind, number and parent."""
    return [
        each
        for each in run.host_series
        if (each.host, each.source) == (device.host, "queue")
        and each.name.split(" ")[:1] == [device.name]
        and each.name.endswith(f" {ROOT}")
    ]


def _neighbor(run: ObservedRun, device: SavedSeries) -> str:
    """What a device was connected to when that was last seen."""
    found = [
        (int(each.rows["time_ns"][-1]), each.name.removeprefix(f"{device.name} "))
        for each in run.host_series
        if (each.host, each.source) == (device.host, SOURCE)
        and each.name.startswith(f"{device.name} ")
        and len(each.rows)
    ]
    return max(found, default=(0, ""))[1]


def _load(
    series: SavedSeries, queues: list[SavedSeries], host: HostConnections | None, owners: ConnectionOwners,
    span: tuple[float, float] | None,
) -> LinkLoad:  # fmt: skip
    import numpy as np

    rows, names = series.rows, series.rows.dtype.names or ()
    times = rows["time_ns"].astype(np.float64)
    changes = {
        name: count_steps(rows[name]) for name in ("sent_nbytes", "received_nbytes", "sent_packets", "send_drops")
    }
    carried = _carried(host, series.name, times, owners)
    seconds = np.diff(times) * 1e-9
    at_s = series.clock.seconds_at_ns(rows["time_ns"])
    first_s, last_s = (at_s[0], at_s[-1]) if span is None else span
    inside_s = np.clip(np.minimum(at_s[1:], last_s) - np.maximum(at_s[:-1], first_s), 0.0, None)
    limited = np.minimum(carried.limited_s, np.minimum(seconds, inside_s))
    is_limited = limited >= _LEAST_LIMITED_SHARE * seconds
    shaper = next((each for each in queues if np.isfinite(each.rows["limit_nbytes_s"]).any()), None)
    drops = [changes["send_drops"], *(count_steps(each.rows["drops"]) for each in queues)]
    return LinkLoad(
        host=series.host,
        device=series.name,
        seconds=float(seconds.sum()),
        sent_nbytes=float(np.nansum(changes["sent_nbytes"])),
        received_nbytes=float(np.nansum(changes["received_nbytes"])),
        rank_nbytes=carried.rank_nbytes,
        other_nbytes=carried.other_nbytes,
        foreign_nbytes=carried.foreign_nbytes,
        header_nbytes=float(np.nansum(changes["sent_packets"])) * _HEADER_NBYTES,
        limited_s=float(limited.sum()),
        limited_nbytes_s=float(np.nansum(changes["sent_nbytes"][is_limited]) / seconds[is_limited].sum())
        if is_limited.any()
        else np.nan,
        speed_nbytes_s=float(rows["speed_nbytes_s"][-1]) if "speed_nbytes_s" in names else np.nan,
        queue="" if shaper is None else " ".join(shaper.name.split(" ")[1:3]).rstrip(":"),
        queue_nbytes_s=np.nan if shaper is None else float(np.nanmax(shaper.rows["limit_nbytes_s"])),
        num_waits=0.0 if shaper is None else float(np.nansum(count_steps(shaper.rows["waits"]))),
        num_drops=float(sum(np.nansum(each) for each in drops)),
        rtt_ratio=float(np.median(carried.rtt_ratios)) if carried.rtt_ratios else np.nan,
        resent_nbytes=carried.resent_nbytes,
        peers=tuple(sorted(carried.peers)),
        other_process=carried.largest_other[0],
        other_end=carried.largest_other[1],
        neighbor="",
    )


def count_steps(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the differences of a count of the kernel; NaN where it is less than before: it was reset or has wrapped.

    Args:
        counts: by time.
    """
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
    others: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def largest_other(self) -> tuple[int | None, str]:
        """The process that sent most to others, and the address to which it sent most of that."""
        if not self.others:
            return None, ""
        process = max(self.others, key=lambda each: sum(self.others[each].values()))
        ends = self.others[process]
        return process, max(ends, key=lambda each: ends[each])


def _carried(
    host: HostConnections | None, device: str, times: NDArray[np.float64], owners: ConnectionOwners
) -> _Carried:
    import numpy as np

    found = _Carried(np.zeros(len(times) - 1))
    for end, rows in rows_of_ends(host) if host is not None else ():
        if end.device != device or host is None or end.process == UNKNOWN_OWNER:
            continue
        process, peer = owners.process(host.host, end), owners.peer(host.host, end)
        counts = {name: moved_since_begin(host, rows, name, process is not None) for name in _COUNTS}
        at = rows["time_ns"].astype(np.float64)
        sent = float(np.nan_to_num(np.interp(times[-1], at, counts["sent_nbytes"] - counts["resent_nbytes"], left=0.0)))
        found.resent_nbytes += float(np.nan_to_num(counts["resent_nbytes"][-1]))
        if process is None:
            found.foreign_nbytes += sent
            continue
        if peer is None:
            found.other_nbytes += sent
            ends = found.others.setdefault(process, {})
            ends[end.remote] = ends.get(end.remote, 0.0) + sent
            continue  # it keeps the ranks waiting only if it keeps their messages waiting
        found.rank_nbytes += sent
        if device == _LOOPBACK or sent < _LEAST_STREAM_NBYTES:
            continue  # through memory: the processors are the limit there
        found.peers.add(f"{peer.device} of {peer.host}")
        waited = np.nan_to_num(counts["busy_s"] - counts["receiver_limited_s"] - counts["buffer_limited_s"])
        began = _began_at(at, times)
        waits, moved = (_by_interval(each, at, began, times) for each in (waited, counts["sent_nbytes"]))
        found.limited_s = np.maximum(found.limited_s, np.where(moved >= _LEAST_STREAM_NBYTES, waits, 0.0))
        is_stream = np.diff(counts["sent_nbytes"]) >= _LEAST_STREAM_NBYTES
        is_limited = is_stream & (np.diff(waited) >= _LEAST_LIMITED_SHARE * (at - began)[1:] * 1e-9)
        ratios = rows["rtt_s"][1:][is_limited] / rows["least_rtt_s"][1:][is_limited]
        found.rtt_ratios += ratios[np.isfinite(ratios)].tolist()
    return found


def _began_at(at: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """When the change that each row of a connection shows can have begun at the earliest: at the last sample before.

    A connection has no row where nothing has changed, so its row before may be older. Devices are sampled just before
    the connections.
    """
    import numpy as np

    own_sample = np.searchsorted(times, at, side="right") - 1
    before = times[np.clip(own_sample - 1, 0, len(times) - 1)]
    return np.minimum(np.maximum(before, np.append(before[:1], at[:-1])), at)


def _by_interval(
    counts: NDArray[np.float64], at: NDArray[np.float64], began: NDArray[np.float64], times: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How much a count grew between each two samples of a device."""
    import numpy as np

    points = np.stack([began, at], axis=1).reshape(-1)
    values = np.stack([np.append(0.0, counts[:-1]), counts], axis=1).reshape(-1)
    return np.diff(np.interp(times, points, values, left=0.0))
