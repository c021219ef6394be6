"""The latest runs of the store, beside this one: how long they took, how well, and what cost them most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.errors import HocketError
from hocket.observe.serve.view import View, ViewSource, ViewWindow
from hocket.observe.serve.views.overview import findings_in_order

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables

_MOST_RUNS = 50


@dataclass(frozen=True)
class HistoryRow:
    """A run. Null is unknown; "problem" says why a run cannot be read."""

    run: str
    command: str
    began_unix_s: float | None
    seconds: float
    parallel: float | None
    lost_s: float | None
    finding: str
    busy_s: dict[str, float]
    nbytes: dict[str, int]
    problem: str


@dataclass(frozen=True)
class HistoryView:
    """The answer."""

    num_runs: int
    runs: list[HistoryRow]


def _efficiencies(table: Tables) -> ir.Table:
    import ibis

    return table("efficiencies").order_by(ibis.desc("num_ranks"), "job").limit(1)


def _worst(table: Tables) -> ir.Table:
    return findings_in_order(table).limit(1)


def _make(source: ViewSource, _: ViewWindow) -> HistoryView:
    names = source.run_names()
    own = source.run.name
    chosen = names[:_MOST_RUNS] if own in names[:_MOST_RUNS] else [*names[: _MOST_RUNS - 1], own]
    return HistoryView(len(names), [_row(source, name) for name in chosen])


def _row(source: ViewSource, name: str) -> HistoryRow:
    try:
        found = source.of(name)
        begin_s, end_s = found.run.extent()
        totals, *_ = found.ask("totals", ViewWindow())
        efficiencies, findings = found.rows(_efficiencies), found.rows(_worst)
    except HocketError as error:  # one that is damaged hides no other
        return HistoryRow(name, "", None, 0.0, None, None, "", {}, {}, str(error)[:300])
    return HistoryRow(
        run=name,
        command=found.command,
        began_unix_s=found.began_unix_s,
        seconds=end_s - begin_s,
        parallel=efficiencies[0]["parallel"] if efficiencies else None,
        lost_s=findings[0]["seconds"] if findings else None,
        finding=str(findings[0]["text"]) if findings else "",
        busy_s={row["layer"]: row["busy_s"] for row in totals},
        nbytes={row["layer"]: row["nbytes"] for row in totals},
        problem="",
    )


VIEW = View("history", HistoryView, _make, "The latest runs of the store.", is_of_run=False)
