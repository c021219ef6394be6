"""The tables of `hocket observe network`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.observe import LinkLoad, ObservedRun, RunConnection

_MOST_CONNECTIONS = 32
_WIDTH = 160


def print_network(
    title: str, run: ObservedRun, links: Sequence[LinkLoad], connections: Sequence[RunConnection]
) -> None:
    """Print the devices that carried anything, and the connections that carried most."""
    from hocket.cli._tables import console_of, table_of

    console = console_of(_WIDTH)
    headings = ("host", "device", "sent", "of ranks", "to others", "of other programs", "unexplained", "received",
                "was the limit", "at", "queue", "drops", "neighbor")  # fmt: skip
    table = table_of(f"{title}: network devices", headings, ("host", "device", "queue", "neighbor"))
    for link in links:
        if link.sent_nbytes or link.received_nbytes:
            nbytes = (link.sent_nbytes, link.rank_nbytes, link.other_nbytes, link.foreign_nbytes, link.residual_nbytes,
                      link.received_nbytes)  # fmt: skip
            limit = f"{link.queue} {_rate(link.queue_nbytes_s)}" if link.queue else "-"
            rates = (
                _seconds(link.limited_s),
                _rate(link.limited_nbytes_s),
                limit,
                _count(link.num_drops),
                link.neighbor or "-",
            )
            table.add_row(link.host, link.device, *map(_nbytes, nbytes), *rates)
    console.print(table)
    if not connections:
        print("no TCP connection of the run's processes was seen")
        return
    columns = ("from", "to", "device", "sent", "again", "busy", "receiver", "own buffer", "network", "round trip",
               "limit")  # fmt: skip
    table = table_of(f"{title}: TCP connections, and what kept them from sending", columns, ("from", "to", "limit"))
    for each in connections[:_MOST_CONNECTIONS]:
        table.add_row(
            _name(run, each.process, each.local), _name(run, each.peer, each.remote), each.device or "-",
            _nbytes(each.sent_nbytes), _nbytes(each.resent_nbytes), _seconds(each.busy_s),
            _seconds(each.receiver_limited_s), _seconds(each.buffer_limited_s), _seconds(each.network_limited_s),
            _seconds(each.rtt_s), each.limited_by or "-",
        )  # fmt: skip
    console.print(table)
    if len(connections) > _MOST_CONNECTIONS:
        print(f"{len(connections)} connections; the first {_MOST_CONNECTIONS} are shown, --json has all")


def _name(run: ObservedRun, place: int | None, address: str) -> str:
    if place is None:
        return address
    owner = run.processes[place].snapshot.owner
    return f"process {owner.pid}" if owner.rank is None else f"rank {owner.rank}"


def _nbytes(value: float) -> str:
    from hocket.comm.policy import format_nbytes

    return "-" if math.isnan(value) or not value else format_nbytes(round(value))


def _rate(value: float) -> str:
    return "-" if math.isnan(value) else f"{_nbytes(value)}/s"


def _count(value: float) -> str:
    return "-" if math.isnan(value) else str(round(value))


def _seconds(value: float) -> str:
    from hocket.comm.policy import format_seconds

    return "-" if math.isnan(value) or not value else format_seconds(value)
