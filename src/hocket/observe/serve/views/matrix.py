"""Who sent how many bytes to whom in the whole run, and who waited for whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from hocket.observe.serve.view import View, ViewSource, ViewWindow

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import TableQuestion, Tables

_MOST_RANKS = 64
"""More ranks are shown by host."""
_UNKNOWN, _NO_JOB = "unknown host", -1


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


def _hosts(table: Tables) -> ir.Table:
    """The host of each rank of a job; of job -1, those of ranks whose job is not known."""
    import ibis

    rows, communicators = table("totals"), table("communicators")[["comm", "job"]].distinct()
    of_jobs = rows.filter(rows["rank"] >= 0).join(communicators, "comm")[["job", "rank", "host"]]
    processes = table("processes")
    others = processes.filter(processes["rank"] >= 0).select("rank", "host", job=ibis.literal(_NO_JOB, "int64"))
    known = of_jobs.union(others[["job", "rank", "host"]])
    return known.group_by("job", "rank").aggregate(host=known.host.max()).order_by("job", "rank")


def _cells(table: Tables) -> ir.Table:
    return table("matrix").rename(other_rank="peer_rank")


def _waits(table: Tables) -> ir.Table:
    rows, communicators = table("waits"), table("communicators")[["comm", "job"]].distinct()
    rows = rows.filter(rows["rank"] >= 0, rows["late_rank"] >= 0, rows["rank"] != rows["late_rank"], rows["wait_s"] > 0)
    return rows.join(communicators, "comm").select("job", "rank", "wait_s", other_rank="late_rank", num_waits=1)


_BYTES, _WAITED = ("sent_nbytes", "num_messages", "modelled_nbytes"), ("num_waits", "wait_s")


def _between(rows_of: TableQuestion, sums: tuple[str, ...], *, hosts: bool) -> TableQuestion:
    """The sums between two ranks, of jobs with few of them; or between two hosts, of all other jobs."""

    def question(table: Tables) -> ir.Table:
        import ibis

        rows, job = rows_of(table), ibis.window(group_by="job")
        most = ibis.greatest(rows["rank"].max().over(job), rows["other_rank"].max().over(job))
        rows = rows.mutate(is_large=most >= _MOST_RANKS)
        if not hosts:
            chosen, ends = rows.filter(~rows.is_large), ("rank", "other_rank")
        else:
            large = rows.filter(rows.is_large)
            chosen = _with_host(_with_host(large, table, "rank", "host"), table, "other_rank", "other_host")
            ends = ("host", "other_host")
        found = chosen.group_by("job", *ends).aggregate(**{name: chosen[name].sum() for name in sums})
        return found.order_by("job", *ends)

    return question


def _with_host(rows: ir.Table, table: Tables, rank: str, host: str) -> ir.Table:
    """Rows with the host of a rank, by its job, or else by its rank alone."""
    import ibis

    known = _hosts(table)
    by_job = known.select(job_="job", rank_="rank", by_job_="host")
    by_rank = known.filter(known.job == _NO_JOB).select(rank_="rank", by_rank_="host")
    joined = rows.left_join(by_job, [rows.job == by_job.job_, rows[rank] == by_job.rank_]).drop("job_", "rank_")
    joined = joined.left_join(by_rank, joined[rank] == by_rank.rank_).drop("rank_")
    found = ibis.coalesce(joined.by_job_.nullif(""), joined.by_rank_.nullif(""), _UNKNOWN)
    return joined.mutate(**{host: found}).drop("by_job_", "by_rank_")


_QUESTIONS = {
    (name, hosts): _between(rows_of, sums, hosts=hosts)
    for name, rows_of, sums in (("bytes", _cells, _BYTES), ("waits", _waits, _WAITED))
    for hosts in (False, True)
}


def _make(source: ViewSource, _: ViewWindow) -> MatrixView:
    hosts: dict[int, dict[int, str]] = {}
    for row in source.rows(_hosts):
        hosts.setdefault(int(row["job"]), {})[int(row["rank"])] = str(row["host"])
    jobs = [JobMatrix(job, is_by_host, ends, MatrixCells(*columns))
            for job, is_by_host, ends, columns in _by_job(source, "bytes", _BYTES, hosts)]  # fmt: skip
    waits = [JobWaits(job, is_by_host, ends, WaitCells(*columns))
             for job, is_by_host, ends, columns in _by_job(source, "waits", _WAITED, hosts)]  # fmt: skip
    return MatrixView(jobs, waits)


def _by_job(
    source: ViewSource, name: str, sums: Sequence[str], hosts: dict[int, dict[int, str]]
) -> Iterator[tuple[int, bool, list[str], list[list[Any]]]]:
    """For each job whether its ends are hosts, the ends, and columns: two places in the ends, and the sums."""
    found = []
    for is_by_host, one, other in ((False, "rank", "other_rank"), (True, "host", "other_host")):
        rows = source.rows(_QUESTIONS[name, is_by_host])
        for job, of_job in groupby(rows, key=lambda row: int(row["job"])):
            cells = list(of_job)
            if is_by_host:
                names = [str(each) for row in cells for each in (row[one], row[other])]
                ends = list(dict.fromkeys([*(hosts.get(job) or hosts.get(_NO_JOB, {})).values(), *names]))
            else:
                names = [f"rank {each}" for row in cells for each in (row[one], row[other])]
                ends = [f"rank {rank}" for rank in range(1 + max(max(row[one], row[other]) for row in cells))]
            places = {end: place for place, end in enumerate(ends)}
            pairs = zip(names[::2], names[1::2], strict=True)
            columns = zip(*((places[first], places[second], *(row[sum_] for sum_ in sums))
                            for (first, second), row in zip(pairs, cells, strict=True)), strict=True)  # fmt: skip
            found.append((job, is_by_host, ends, list(map(list, columns))))
    yield from sorted(found, key=lambda each: each[0])


VIEW = View("matrix", MatrixView, _make, "Who sent how many bytes to whom, and who waited for whom.")
