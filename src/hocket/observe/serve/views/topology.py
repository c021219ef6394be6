"""What the hosts of a run are connected to, and how much of each link was used, in the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from hocket.observe.serve.view import View, ViewSource, ViewWindow

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables

_LOOPBACK = "lo"
_NETWORK = "network"
"""What devices are connected to of which nothing else is known."""


@dataclass(frozen=True)
class TopologyNode:
    """A host, a switch, or the network as far as nothing is known of it."""

    name: str
    kind: str
    num_processes: int


@dataclass(frozen=True)
class TopologyLink:
    """A device of a host and what it is connected to.

    "used_share" is what it sent of what it can send, as its queue or the device says; null: neither does.
    """

    source: str
    target: str
    device: str
    port: str
    sent_nbytes: float
    received_nbytes: float
    nbytes_s: float
    used_share: float | None
    limited_s: float
    num_drops: float


@dataclass(frozen=True)
class TopologyView:
    """The answer."""

    nodes: list[TopologyNode]
    links: list[TopologyLink]


def _hosts(table: Tables) -> ir.Table:
    return table("hosts")[["host", "num_processes"]].order_by("host")


def _links(table: Tables) -> ir.Table:
    rows = table("links")
    return rows.filter(rows.device != _LOOPBACK, rows.sent_nbytes + rows.received_nbytes > 0).order_by("host", "device")


def _make(source: ViewSource, _: ViewWindow) -> TopologyView:
    nodes = {str(row["host"]): TopologyNode(str(row["host"]), "host", row["num_processes"])
             for row in source.rows(_hosts)}  # fmt: skip
    links = []
    for row in source.rows(_links):
        target, port = _other_end(row)
        if target not in nodes:
            nodes[target] = TopologyNode(target, "network" if target == _NETWORK else "switch", 0)
        rate = row["sent_nbytes"] / row["seconds"] if row["seconds"] else 0.0
        limit = row["queue_nbytes_s"] if isfinite(row["queue_nbytes_s"]) else row["speed_nbytes_s"]
        links.append(
            TopologyLink(str(row["host"]), target, str(row["device"]), port, row["sent_nbytes"], row["received_nbytes"],
                         rate, rate / limit if isfinite(limit) and limit else None, row["limited_s"], row["num_drops"])
        )  # fmt: skip
    return TopologyView([*nodes.values()], links)


def _other_end(row: dict[str, Any]) -> tuple[str, str]:
    """The host or switch that a device is connected to, and its port there."""
    neighbor, peers = str(row["neighbor"]), str(row["peers"])
    if neighbor:
        name, _, port = neighbor.partition(" port ")
        device, _, host = name.partition(" of ")  # the other end of a virtual pair
        return (host, device) if host else (name, port)
    if peers and "," not in peers:
        device, _, host = peers.partition(" of ")
        return host, device
    return _NETWORK, ""


VIEW = View("topology", TopologyView, _make, "What the hosts are connected to, and how much of each link was used.")
