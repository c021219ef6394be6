"""Times that were observed in a running program."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.observe.serve.result import ResultFile, ResultKind, ResultSource
from hocket.tune.observations import HEAD, Observations, load_observations


@dataclass(frozen=True)
class ObservedTime:
    """The times of one kind of operation; "total_s" is the median times the number of operations."""

    op: str
    dtypes: str
    num_ranks: int
    num_hosts: int
    nbytes: int
    carrier: str
    count: int
    median_s: float
    total_s: float


@dataclass(frozen=True)
class ObservationsAnswer:
    """The answer; "tables" are the tuning tables that were opened with it, which say what the choices cost."""

    hosts: list[str]
    rows: list[ObservedTime]
    tables: list[str]


def _load(file: ResultFile) -> Observations:
    return load_observations(file.path)


def _make(source: ResultSource) -> ObservationsAnswer:
    seen: Observations = source.value
    rows = [
        ObservedTime(
            row.op, row.dtypes, row.num_ranks, row.num_hosts, row.nbytes, row.carrier, row.count, row.median_s,
            row.median_s * row.count,
        )
        for row in seen.rows
    ]  # fmt: skip
    rows.sort(key=lambda row: -row.total_s)
    return ObservationsAnswer(list(seen.hosts), rows, [each.name for each in source.others("tuning")])


RESULT = ResultKind(
    "observations", "times of a recorded run", "hocket observe export RUN times.observations.json", HEAD,
    ObservationsAnswer, _load, _make,
)  # fmt: skip
