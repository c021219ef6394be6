"""Options for the links between ranks, for verbs that simulate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli._verbs import optional
from hocket.errors import InvalidArgument

if TYPE_CHECKING:
    from hocket.sim import Hosts, Link, Uniform

Latency = Annotated[float, typer.Option(metavar="US", help="Latency of a message, in microseconds.")]
Bandwidth = Annotated[float, typer.Option(metavar="GB/S", help="Bandwidth of a link.")]
Reduce = Annotated[float, typer.Option(metavar="GB/S", help="Speed of reductions; inf: they take no time.")]
RanksPerHost = Annotated[
    int | None,
    optional(metavar="N", help="Ranks that share a host's uplink. Default: each rank has its own link."),
]
HostLatency = Annotated[float, typer.Option(metavar="US", help="Latency between hosts, in microseconds.")]
HostBandwidth = Annotated[float, typer.Option(metavar="GB/S", help="Bandwidth of a host's uplink.")]


def check_link(latency: float, bandwidth: float, prefix: str = "") -> None:
    """Check the options of a link; `prefix`: how their names begin."""
    if not 0 <= latency < float("inf"):
        raise InvalidArgument(f"--{prefix}latency must be 0 or more microseconds, not {latency}")
    if not bandwidth > 0:
        raise InvalidArgument(f"--{prefix}bandwidth must be more than 0 GB/s, not {bandwidth}")


def describe_fabric(fabric: Uniform | Hosts) -> str:
    """Return a text such as "links of 2 us and 12.5 GB/s"."""
    from hocket.sim import Uniform

    if isinstance(fabric, Uniform):
        return f"links of {_described(fabric.link)}"
    return (
        f"hosts of {fabric.ranks_per_host} ranks: links of {_described(fabric.inner)} in a host, "
        f"of {_described(fabric.outer)} between hosts"
    )


def _described(link: Link) -> str:
    rate = "any rate" if not link.beta_s else f"{1e-9 / link.beta_s:.3g} GB/s"
    return f"{link.alpha_s * 1e6:.3g} us and {rate}"


def read_fabric(
    latency: float,
    bandwidth: float,
    reduce: float,
    ranks_per_host: int | None,
    host_latency: float,
    host_bandwidth: float,
) -> Uniform | Hosts:
    """Return the fabric that the options describe."""
    from hocket.sim import Hosts, Link, Uniform

    check_link(latency, bandwidth)
    check_link(host_latency, host_bandwidth, prefix="host-")
    link = Link.of(latency, bandwidth, reduce)
    if ranks_per_host is None:
        return Uniform(link)
    if ranks_per_host < 1:
        raise InvalidArgument(f"--ranks-per-host must be 1 or more, not {ranks_per_host}")
    return Hosts(link, Link.of(host_latency, host_bandwidth, reduce), ranks_per_host)
