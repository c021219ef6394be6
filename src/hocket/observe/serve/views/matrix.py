"""Who sent how many bytes to whom, in the whole run."""

from __future__ import annotations

from dataclasses import dataclass
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
class MatrixView:
    """The answer."""

    jobs: list[JobMatrix]


def _cells(table: Tables) -> ir.Table:
    return table("matrix").order_by("job", "rank", "peer_rank")


def _ranks(table: Tables) -> ir.Table:
    rows = table("processes")
    return rows.filter(rows["rank"] >= 0)[["rank", "host"]]


def _make(source: ViewSource, _: ViewWindow) -> MatrixView:
    hosts = {row["rank"]: str(row["host"]) for row in source.rows(_ranks)}
    jobs: dict[int, list[dict[str, Any]]] = {}
    for row in source.rows(_cells):
        jobs.setdefault(row["job"], []).append(row)
    return MatrixView([_matrix_of(job, rows, hosts) for job, rows in jobs.items()])


def _matrix_of(job: int, rows: list[dict[str, Any]], hosts: dict[int, str]) -> JobMatrix:
    num_ranks = 1 + max(max(row["rank"], row["peer_rank"]) for row in rows)
    is_by_host = num_ranks > _MOST_RANKS
    names = [hosts.get(rank, "unknown host") if is_by_host else f"rank {rank}" for rank in range(num_ranks)]
    ends = list(dict.fromkeys(names))
    places = {name: place for place, name in enumerate(ends)}
    sums: dict[tuple[int, int], list[Any]] = {}
    for row in rows:
        own = sums.setdefault((places[names[row["rank"]]], places[names[row["peer_rank"]]]), [0, 0, 0.0])
        own[0] += row["sent_nbytes"]
        own[1] += row["num_messages"]
        own[2] += row["modelled_nbytes"]
    columns = zip(*((*key, *values) for key, values in sums.items()), strict=True)
    return JobMatrix(job, is_by_host, ends, MatrixCells(*map(list, columns)))


VIEW = View("matrix", MatrixView, _make, "Who sent how many bytes to whom.")
