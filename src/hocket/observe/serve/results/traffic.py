"""Recorded steps of programs: their operations in the order of issue."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.observe.serve.result import ResultFile, ResultKind, ResultSource
from hocket.trace.traffic import HEAD, Traffic

_MOST_STEPS = 10_000


@dataclass(frozen=True)
class TrafficTotal:
    """The operations of one kind, size and type of elements."""

    op: str
    nbytes: int
    dtype: str
    count: int
    total_nbytes: int


@dataclass(frozen=True)
class TrafficRow:
    """An operation; "compute_s" is the computation before it."""

    number: int
    op: str
    nbytes: int
    dtype: str
    is_async: bool
    compute_s: float


@dataclass(frozen=True)
class TrafficAnswer:
    """The answer; "steps" has at most the first 10,000 operations, "totals" has all."""

    step: str
    source: str
    num_ranks: int
    num_operations: int
    compute_s: float
    totals: list[TrafficTotal]
    steps: list[TrafficRow]


def _load(file: ResultFile) -> Traffic:
    return Traffic.from_json(file.text, where=str(file.path))


def _make(source: ResultSource) -> TrafficAnswer:
    traffic: Traffic = source.value
    counts: dict[tuple[str, int, str], int] = {}
    for step in traffic.steps:
        key = step.kind, step.nbytes, step.dtype
        counts[key] = counts.get(key, 0) + 1
    totals = [TrafficTotal(*key, count, count * key[1]) for key, count in counts.items()]
    rows = [
        TrafficRow(number, step.kind, step.nbytes, step.dtype, step.is_async, step.compute_s)
        for number, step in enumerate(traffic.steps[:_MOST_STEPS])
    ]
    compute_s = sum(step.compute_s for step in traffic.steps)
    return TrafficAnswer(
        traffic.name, traffic.source, traffic.num_ranks, len(traffic.steps), compute_s, totals, rows
    )  # fmt: skip


RESULT = ResultKind("traffic", "a recorded step", "examples/gpt.py --traffic FILE", HEAD, TrafficAnswer, _load, _make)
