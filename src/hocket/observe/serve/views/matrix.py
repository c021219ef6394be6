"""Who sent how many bytes to whom in the whole run, and who waited for whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from hocket.observe.serve.view import View, ViewSource, ViewWindow

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables

_MOST_RANKS = 64
"""More ranks are shown by host."""


@dataclass(frozen=True)
class MatrixCells:
    """What ends sent to each other: columns of equal length. "source" and "target" are places in the ends.

    "modelled_nbytes" are bytes of collectives whose messages are not known, as an algorithm would send them.
    """

    source: list[int]
    target: list[int]
    sent_nbytes: list[int]
    num_messages: list[int]
    modelled_nbytes: list[float]


@dataclass(frozen=True)
class JobMatrix:
    """The matrix of a job; its ends are ranks, or hosts where there are many."""

    job: int
    is_by_host: bool
    ends: list[str]
    cells: MatrixCells


@dataclass(frozen=True)
class WaitCells:
    """How long ends waited in collectives for the one that came last: columns of equal length. "source" waited for
    "target"; both are places in the ends."""

    source: list[int]
    target: list[int]
    num_waits: list[int]
    wait_s: list[float]


@dataclass(frozen=True)
class JobWaits:
    """Who waited for whom in a job; ends are ranks, or hosts where there are many."""

    job: int
    is_by_host: bool
    ends: list[str]
    cells: WaitCells


@dataclass(frozen=True)
class MatrixView:
    """The answer."""

    jobs: list[JobMatrix]
    waits: list[JobWaits]


def _cells(table: Tables) -> ir.Table:
    return table("matrix").order_by("job", "rank", "peer_rank")


def _waits(table: Tables) -> ir.Table:
    rows, communicators = table("waits"), table("communicators")[["comm", "job"]].distinct()
    rows = rows.filter(rows["rank"] >= 0, rows["late_rank"] >= 0, rows["rank"] != rows["late_rank"], rows["wait_s"] > 0)
    of_jobs = rows.join(communicators, "comm")[["job", "rank", "late_rank", "wait_s"]]
    sums = of_jobs.group_by("job", "rank", "late_rank")
    return sums.aggregate(num_waits=of_jobs.count(), wait_s=of_jobs.wait_s.sum()).order_by("job", "rank", "late_rank")


def _ranks(table: Tables) -> ir.Table:
    rows = table("processes")
    return rows.filter(rows["rank"] >= 0)[["rank", "host"]]


def _make(source: ViewSource, _: ViewWindow) -> MatrixView:
    hosts = {row["rank"]: str(row["host"]) for row in source.rows(_ranks)}
    jobs = [
        JobMatrix(job, is_by_host, ends, MatrixCells(*columns))
        for job, is_by_host, ends, columns in _by_job(
            source.rows(_cells), "peer_rank", ("sent_nbytes", "num_messages", "modelled_nbytes"), hosts
        )
    ]
    waits = [
        JobWaits(job, is_by_host, ends, WaitCells(*columns))
        for job, is_by_host, ends, columns in _by_job(source.rows(_waits), "late_rank", ("num_waits", "wait_s"), hosts)
    ]
    return MatrixView(jobs, waits)


def _by_job(
    rows: list[dict[str, Any]], other: str, values: Sequence[str], hosts: dict[int, str]
) -> Iterator[tuple[int, bool, list[str], Iterator[list[Any]]]]:
    """For each job whether its ends are hosts, the ends, and columns: the sums of values between two ends.

    Args:
        rows: in the order of jobs; between "rank" and another rank.
        other: the column with the other rank.
        values: columns to be summed.
        hosts: of ranks.
    """
    for job, of_job in groupby(rows, key=lambda row: row["job"]):
        found = list(of_job)
        num_ranks = 1 + max(max(row["rank"], row[other]) for row in found)
        is_by_host = num_ranks > _MOST_RANKS
        names = [hosts.get(rank, "unknown host") if is_by_host else f"rank {rank}" for rank in range(num_ranks)]
        ends = list(dict.fromkeys(names))
        places = {name: place for place, name in enumerate(ends)}
        sums: dict[tuple[int, int], list[Any]] = {}
        for row in found:
            own = sums.setdefault((places[names[row["rank"]]], places[names[row[other]]]), [0] * len(values))
            for place, name in enumerate(values):
                own[place] += row[name]
        columns = zip(*((*key, *sums_of) for key, sums_of in sums.items()), strict=True)
        yield int(job), is_by_host, ends, map(list, columns)


VIEW = View("matrix", MatrixView, _make, "Who sent how many bytes to whom, and who waited for whom.")
