"""Where the time and the bytes of communication went: by operation, size, algorithm and library, in the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.observe.serve.view import View, ViewSource, ViewWindow

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables


@dataclass(frozen=True)
class OperationTotal:
    """All operations of one kind, size, algorithm and library; see `hocket.observe.BreakdownRow`."""

    op: str
    least_nbytes: int
    most_nbytes: int
    algorithm: str
    library: str
    is_foreign: bool
    num_ranks: int
    count: int
    failed: int
    nbytes: int
    seconds: float
    median_s: float | None
    p99_s: float | None
    bus_bandwidth: float | None


@dataclass(frozen=True)
class JobShare:
    """How much of a job's time was useful; see `hocket.observe.JobEfficiency`."""

    job: int
    num_ranks: int
    runtime_s: float
    load_balance: float
    communication: float
    parallel: float
    wait_share: float
    transfer_share: float
    is_upper_bound: bool


@dataclass(frozen=True)
class BreakdownView:
    """The answer."""

    operations: list[OperationTotal]
    jobs: list[JobShare]


def _operations(table: Tables) -> ir.Table:
    import ibis

    return table("breakdown").order_by(ibis.desc("seconds"), "op", "least_nbytes")


def _jobs(table: Tables) -> ir.Table:
    return table("efficiencies").order_by("job")


def _make(source: ViewSource, _: ViewWindow) -> BreakdownView:
    return BreakdownView(
        [OperationTotal(**row) for row in source.rows(_operations)], [JobShare(**row) for row in source.rows(_jobs)]
    )


VIEW = View("breakdown", BreakdownView, _make, "Where the time and the bytes of communication went.")
