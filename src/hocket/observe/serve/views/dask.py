"""Messages over Dask's connections: bytes of each process over time, and what went between each two processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.observe.serve.view import View, ViewSource, ViewWindow

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables

_MOST_CONNECTIONS = 200
_LAYER = "dask"


@dataclass(frozen=True)
class DaskCells:
    """Messages that each process sent or received in each span: columns of equal length. "busy_s" is how long they
    waited: those that are sent for the peer, those that are received for their reader. A span begins at "span" times
    its width."""

    process: list[int]
    rank: list[int]
    span: list[int]
    count: list[int]
    busy_s: list[float]
    nbytes: list[int]


@dataclass(frozen=True)
class DaskConnectionRow:
    """What one process sent to another one and received from it in the window, over one path.

    "peer_process" is -1 where it is unknown, and "peer" then its address. "pid" and "peer_pid" are -1 where they are
    unknown.
    """

    process: int
    rank: int
    pid: int
    host: str
    peer_process: int
    peer_rank: int
    peer_pid: int
    peer: str
    path: str
    num_sent: int
    nbytes_sent: int
    waited_s: float
    longest_wait_s: float
    most_queue_nbytes: int
    num_received: int
    nbytes_received: int


@dataclass(frozen=True)
class DaskView:
    """The answer."""

    begin_s: float
    end_s: float
    width_s: float
    cells: DaskCells
    connections: list[DaskConnectionRow]


def _connections(table: Tables) -> ir.Table:
    import ibis

    rows = table("dask_in_window")
    weight = ibis.greatest(rows.weight, 1)
    is_sent, is_known = rows.kind == "send", rows.peer_process >= 0
    taken = ibis.ifelse(is_sent & ~rows.seconds.isnan(), rows.seconds, 0.0)
    found = rows.mutate(
        other=ibis.ifelse(is_known, "", rows.peer),  # one process may be reached by several addresses
        sends=ibis.ifelse(is_sent, weight, 0),
        receives=ibis.ifelse(is_sent, 0, weight),
        nbytes_out=ibis.ifelse(is_sent, rows.nbytes * weight, 0),
        nbytes_in=ibis.ifelse(is_sent, 0, rows.nbytes * weight),
        taken=taken,
        all_taken=taken * weight,
    )
    return (
        found.group_by("process", "peer_process", "other", "path")
        .aggregate(
            num_sent=found.sends.sum(), num_received=found.receives.sum(), nbytes_sent=found.nbytes_out.sum(),
            nbytes_received=found.nbytes_in.sum(), waited_s=found.all_taken.sum(), longest_wait_s=found.taken.max(),
            most_queue_nbytes=found.queue_nbytes.max(),
        )
        .order_by(ibis.desc("nbytes_sent"), "process", "peer_process", "other", "path")
        .limit(_MOST_CONNECTIONS)
    )  # fmt: skip


def _processes(table: Tables) -> ir.Table:
    return table("processes")[["process", "rank", "pid", "host"]]


_NOBODY: dict[str, Any] = {"rank": -1, "pid": -1, "host": ""}


def _row(found: dict[str, Any], processes: dict[int, dict[str, Any]]) -> DaskConnectionRow:
    own = processes.get(found["process"], _NOBODY)
    peer = processes.get(found["peer_process"], _NOBODY)
    return DaskConnectionRow(
        found["process"], own["rank"], own["pid"], own["host"], found["peer_process"], peer["rank"], peer["pid"],
        str(found["other"]), str(found["path"]), int(found["num_sent"]), int(found["nbytes_sent"]), found["waited_s"],
        found["longest_wait_s"], int(found["most_queue_nbytes"]), int(found["num_received"]),
        int(found["nbytes_received"]),
    )  # fmt: skip


def _make(source: ViewSource, window: ViewWindow) -> DaskView:
    rows, width_s, begin_s, end_s = source.ask("timeline", window)
    own: list[dict[str, Any]] = [row for row in rows if row["layer"] == _LAYER]
    cells = DaskCells(
        [row["process"] for row in own], [row["rank"] for row in own], [row["bin"] for row in own],
        [row["num_events"] for row in own], [row["busy_s"] for row in own], [row["nbytes"] for row in own],
    )  # fmt: skip
    processes = {row["process"]: row for row in source.rows(_processes)}
    connections = [_row(each, processes) for each in source.rows(_connections, *source.limits(window))]
    return DaskView(begin_s, end_s, width_s, cells, connections)


VIEW = View("dask", DaskView, _make, "Messages over Dask's connections.", num_spans=150)
