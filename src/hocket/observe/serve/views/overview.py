"""What cost the most time, and what the layers of the program did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.observe.analysis.findings import MIDDLE, ORDER
from hocket.observe.analysis.unfinished import UnfinishedOperation
from hocket.observe.serve.view import View, ViewSource, ViewWindow

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables

_MOST_NAMES = 50
_MOST_UNFINISHED = 100


@dataclass(frozen=True)
class FindingRow:
    """A finding; "process" and "rank" are -1 if it is about no single one."""

    kind: str
    seconds: float
    layer: str
    process: int
    rank: int
    text: str


@dataclass(frozen=True)
class LayerTotal:
    """All events of a layer in the window."""

    layer: str
    num_events: int
    busy_s: float
    nbytes: int
    most_s: float


@dataclass(frozen=True)
class NameTotal:
    """All events of a name in the window."""

    layer: str
    name: str
    num_events: int
    busy_s: float
    nbytes: int
    most_s: float


@dataclass(frozen=True)
class BusyLayer:
    """How many processes were in a layer, on the average of each span."""

    layer: str
    busy: list[float]


@dataclass(frozen=True)
class LayerSeries:
    """Layers over time: "at_s" is the middle of each span."""

    width_s: float
    at_s: list[float]
    layers: list[BusyLayer]


@dataclass(frozen=True)
class OverviewView:
    """The answer; "unfinished" has at most 100 operations, the longest first; "num_jobs" is the number of jobs."""

    begin_s: float
    end_s: float
    num_jobs: int
    unfinished: list[UnfinishedOperation]
    findings: list[FindingRow]
    totals: list[LayerTotal]
    over_time: LayerSeries
    names: list[NameTotal]


def findings_in_order(table: Tables) -> ir.Table:
    """The findings, in the order of `hocket.observe.findings`."""
    import ibis

    rows = table("findings")
    return rows.order_by(rows.kind.cases(*ORDER.items(), else_=MIDDLE), ibis.desc("seconds"), "text")


def _unfinished(table: Tables) -> ir.Table:
    import ibis

    return table("unfinished").order_by(ibis.desc("seconds"), "communicator", "number").limit(_MOST_UNFINISHED)


def _jobs(table: Tables) -> ir.Table:
    rows = table("communicators").select("job").union(table("unfinished").select("job"))
    return rows.aggregate(num_jobs=lambda each: each.job.nunique())


def _make(source: ViewSource, window: ViewWindow) -> OverviewView:
    totals, _, begin_s, end_s = source.ask("totals", window)
    names, *_ = source.ask("names", window)
    over_time, width_s, first_s, last_s = source.ask("over-time", window)
    return OverviewView(
        begin_s=begin_s,
        end_s=end_s,
        num_jobs=source.rows(_jobs)[0]["num_jobs"],
        unfinished=[UnfinishedOperation(**row) for row in source.rows(_unfinished)],
        findings=[FindingRow(**row) for row in source.rows(findings_in_order)],
        totals=[LayerTotal(**row) for row in totals],
        over_time=_series(over_time, width_s, first_s, last_s),
        names=[NameTotal(**row) for row in names[:_MOST_NAMES]],
    )


def _series(rows: list[dict[str, Any]], width_s: float, begin_s: float, end_s: float) -> LayerSeries:
    first, after = round(begin_s / width_s), round(end_s / width_s)
    layers: dict[str, list[float]] = {}
    for row in rows:
        spans = layers.setdefault(row["layer"], [0.0] * (after - first))
        spans[row["bin"] - first] = row["busy_s"] / width_s
    middles = [(span + 0.5) * width_s for span in range(first, after)]
    return LayerSeries(width_s, middles, [BusyLayer(layer, busy) for layer, busy in layers.items()])


VIEW = View("overview", OverviewView, _make, "What cost the most time, and what the layers of the program did.")
