"""Where the time and the bytes of communication went: by operation, size, algorithm and library, in the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.observe.analysis.breakdown import BreakdownRow
from hocket.observe.analysis.efficiency import JobEfficiency
from hocket.observe.serve.view import View, ViewSource, ViewWindow

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables


@dataclass(frozen=True)
class BreakdownView:
    """The answer."""

    operations: list[BreakdownRow]
    jobs: list[JobEfficiency]


def _operations(table: Tables) -> ir.Table:
    import ibis

    return table("breakdown").order_by(ibis.desc("seconds"), "op", "least_nbytes")


def _jobs(table: Tables) -> ir.Table:
    return table("efficiencies").order_by("job")


def _make(source: ViewSource, _: ViewWindow) -> BreakdownView:
    return BreakdownView(
        [BreakdownRow(**row) for row in source.rows(_operations)], [JobEfficiency(**row) for row in source.rows(_jobs)]
    )


VIEW = View("breakdown", BreakdownView, _make, "Where the time and the bytes of communication went.")
