"""Network devices of this host: their queues, and through which of them an address is reached.

A queue that shapes (tc-tbf(8)) has a limit of its own; the kernel counts how often a packet had to wait for it.
"""

from __future__ import annotations

import socket
import struct

from hocket.errors import RecorderError
from hocket.observe.host import HostSample
from hocket.observe.netlink import DUMP, ROUTE, NetlinkSocket, attribute, attributes

_GET_ROUTE, _GET_QUEUES = 26, 38
"""RTM_GETROUTE, RTM_GETQDISC."""
_ROUTE_HEAD = struct.Struct("=BBBBBBBBI")
_DESTINATION, _DEVICE = 1, 4
"""RTA_DST, RTA_OIF."""
_QUEUE_HEAD = struct.Struct("=BxxxiIII")
_KIND, _OPTIONS, _COUNTS = 1, 2, 7
"""TCA_KIND, TCA_OPTIONS, TCA_STATS2."""
_BASIC, _QUEUE = 1, 3
"""TCA_STATS_BASIC, TCA_STATS_QUEUE."""
_QUEUE_COUNTS = struct.Struct("=IIIII")
_ROOT_HANDLE = 0xFFFF_FFFF
ROOT = "root"
"""In names: all packets of the device go through this queue."""
_SHAPER = "tbf"
_SHAPER_RATE, _SHAPER_RATE64 = 1, 4
"""TCA_TBF_PARMS, which begins with struct tc_ratespec, whose rate is at 8; TCA_TBF_RATE64."""
_NO_QUEUE = "noqueue"
_MOST_QUEUES = 256


def sample_queues(problems: set[str]) -> list[HostSample]:
    """Return the queues of all network devices; adds what the kernel refuses to `problems`.

    The source is "queue", the name that of the device with kind, number and parent of the queue, such as
    "eth0 tbf 8001: root" or, of one of several below it, "eth0 fq_codel 0: 8001:1".
    Numbers are "sent_nbytes"; "waits", how often a packet had to wait for the limit; "drops"; "waiting_nbytes" and
    "waiting_packets" now; "limit_nbytes_s", if it has a limit.
    """
    try:
        with NetlinkSocket(ROUTE) as kernel:
            answers = list(kernel.ask(_GET_QUEUES, _QUEUE_HEAD.pack(0, 0, 0, 0, 0), DUMP))
    except RecorderError as error:
        problems.add(f"queues of network devices: {error}")
        return []
    return [found for body in answers[:_MOST_QUEUES] if (found := _queue(body)) is not None]


def device_to(address: str) -> str | None:
    """Return the name of the device through which this host sends to an address; None: there is no route."""
    is_new = ":" in address
    family, bits = (socket.AF_INET6, 128) if is_new else (socket.AF_INET, 32)
    try:
        wanted = attribute(_DESTINATION, socket.inet_pton(family, address))
        with NetlinkSocket(ROUTE) as kernel:
            for body in kernel.ask(_GET_ROUTE, _ROUTE_HEAD.pack(family, bits, 0, 0, 0, 0, 0, 0, 0) + wanted):
                found = attributes(body, _ROUTE_HEAD.size).get(_DEVICE)
                return None if found is None else socket.if_indextoname(int.from_bytes(found, "little"))
    except (OSError, RecorderError):
        return None
    return None


def _queue(body: memoryview) -> HostSample | None:
    if len(body) < _QUEUE_HEAD.size:
        return None
    _, index, handle, parent, _ = _QUEUE_HEAD.unpack_from(body)
    found = attributes(body, _QUEUE_HEAD.size)
    kind = bytes(found.get(_KIND, b"")).rstrip(b"\0").decode(errors="replace")
    counts = attributes(found.get(_COUNTS, memoryview(b"")), 0)
    if kind in ("", _NO_QUEUE) or _QUEUE not in counts or len(counts[_QUEUE]) < _QUEUE_COUNTS.size:
        return None
    packets, nbytes, drops, _, waits = _QUEUE_COUNTS.unpack_from(counts[_QUEUE])
    basic = counts.get(_BASIC, memoryview(b""))
    try:
        device = socket.if_indextoname(index)
    except OSError:
        return None  # it was removed meanwhile
    numbers: dict[str, float | None] = {
        "sent_nbytes": int.from_bytes(basic[:8], "little") if len(basic) >= 8 else None,
        "waits": waits,
        "drops": drops,
        "waiting_nbytes": nbytes,
        "waiting_packets": packets,
        "limit_nbytes_s": _limit(found.get(_OPTIONS, memoryview(b""))) if kind == _SHAPER else None,
    }
    above = ROOT if parent == _ROOT_HANDLE else f"{parent >> 16:x}:{parent & 0xFFFF:x}"
    return HostSample("queue", f"{device} {kind} {handle >> 16:x}: {above}", numbers)


def _limit(options: memoryview) -> float | None:
    found = attributes(options, 0)
    wide, narrow = found.get(_SHAPER_RATE64), found.get(_SHAPER_RATE)
    if wide is not None and len(wide) >= 8:
        return float(int.from_bytes(wide[:8], "little"))
    return float(int.from_bytes(narrow[8:12], "little")) if narrow is not None and len(narrow) >= 12 else None
