"""Options that say what connects ranks, for verbs that simulate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hocket.errors import InvalidArgument

if TYPE_CHECKING:
    from hocket.sim import Hosts, Uniform

Latency = Annotated[float, typer.Option(metavar="US", help="Of a message, in microseconds.")]
Bandwidth = Annotated[float, typer.Option(metavar="GB/S", help="Of a link.")]
Reduce = Annotated[float, typer.Option(metavar="GB/S", help="Of reducing; inf: it takes no time.")]
RanksPerHost = Annotated[
    int | None, typer.Option(metavar="N", show_default=False, help="Default: no two ranks share a link.")
]
HostLatency = Annotated[float, typer.Option(metavar="US", help="Between hosts.")]
HostBandwidth = Annotated[float, typer.Option(metavar="GB/S", help="Of a host's uplink.")]


def check_link(latency: float, bandwidth: float, of: str = "") -> None:
    """Check what the options say of a link; `of`: what they begin with."""
    if not 0 <= latency < float("inf"):
        raise InvalidArgument(f"--{of}latency is a number of microseconds, 0 or more, not {latency}")
    if not bandwidth > 0:
        raise InvalidArgument(f"--{of}bandwidth is a number of GB/s above 0, not {bandwidth}")


def read_fabric(
    latency: float,
    bandwidth: float,
    reduce: float,
    ranks_per_host: int | None,
    host_latency: float,
    host_bandwidth: float,
) -> Uniform | Hosts:
    """Return what the options say."""
    from hocket.sim import Hosts, Link, Uniform

    check_link(latency, bandwidth)
    check_link(host_latency, host_bandwidth, of="host-")
    link = Link.of(latency, bandwidth, reduce)
    if ranks_per_host is None:
        return Uniform(link)
    if ranks_per_host < 1:
        raise InvalidArgument(f"--ranks-per-host must be 1 or more, not {ranks_per_host}")
    return Hosts(link, Link.of(host_latency, host_bandwidth, reduce), ranks_per_host)
