"""Which operations each job and each host used most: by size, blocking or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.observe.serve.view import View, ViewSource, ViewWindow

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables

_MOST_ROWS = 500


@dataclass(frozen=True)
class UseRow:
    """Operations of one kind, size and way, that a job or a host has used in the window.

    "least_nbytes" is the smallest size of their class, which goes to twice of it; 0: without data.
    """

    group: str
    op: str
    least_nbytes: int
    is_async: bool
    count: int
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class JobsView:
    """The answer."""

    begin_s: float
    end_s: float
    by_job: list[UseRow]
    by_host: list[UseRow]


def _uses(rows: ir.Table, group: Any) -> ir.Table:
    import ibis

    weight = ibis.greatest(rows.weight, 1)
    bits = ibis.greatest(rows.nbytes, 1).log2().floor().cast("int64")
    found = rows.mutate(group=group, weight=weight, bits=ibis.ifelse(rows.nbytes > 0, bits, -1))
    taken = found.ended_s - found.began_s
    return (
        found.mutate(taken=ibis.ifelse(taken.isnan(), 0.0, taken) * found.weight)
        .group_by("group", "op", "bits", "is_async")
        .aggregate(
            count=lambda each: each.weight.sum(), total_nbytes=lambda each: (each.nbytes * each.weight).sum(),
            seconds=lambda each: each.taken.sum(),
        )
        .order_by(ibis.desc("seconds"), "group", "op", "bits", "is_async")
        .limit(_MOST_ROWS)
    )  # fmt: skip


def _by_job(table: Tables) -> ir.Table:
    rows, communicators = table("operations_in_window"), table("communicators")
    joined = rows.join(communicators[["comm", "job"]], "comm")
    return _uses(joined, joined.job.cast("string"))


def _by_host(table: Tables) -> ir.Table:
    rows = table("operations_in_window")
    return _uses(rows, rows.host)


def _make(source: ViewSource, window: ViewWindow) -> JobsView:
    _, _, begin_s, end_s = source.ask("totals", window)
    by_job = [_row(row, f"job {row['group']}") for row in source.rows(_by_job, *source.limits(window))]
    by_host = [_row(row, str(row["group"])) for row in source.rows(_by_host, *source.limits(window))]
    return JobsView(begin_s, end_s, by_job, by_host)


def _row(row: dict[str, Any], group: str) -> UseRow:
    least = 1 << row["bits"] if row["bits"] >= 0 else 0
    return UseRow(group, row["op"], least, row["is_async"], int(row["count"]), int(row["total_nbytes"]), row["seconds"])


VIEW = View("jobs", JobsView, _make, "Which operations each job and each host used most.")
