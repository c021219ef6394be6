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

    link = Link.of(latency, bandwidth, reduce)
    if ranks_per_host is None:
        return Uniform(link)
    if ranks_per_host < 1:
        raise InvalidArgument(f"--ranks-per-host must be 1 or more, not {ranks_per_host}")
    return Hosts(link, Link.of(host_latency, host_bandwidth, reduce), ranks_per_host)
