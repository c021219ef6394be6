"""Results of `hocket bench run`: medians with their intervals by size, and the differences from other files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hocket.bench.comparison import compare
from hocket.bench.formats.json import HEAD, load_run
from hocket.bench.point import labels_of
from hocket.bench.registry import find_benchmark
from hocket.bench.result import Result, clearly_fastest
from hocket.bench.run import Run
from hocket.errors import InvalidArgument
from hocket.observe.serve.result import LoadedResult, ResultFile, ResultKind, ResultSource

_LEAST = 0.02
"""Smaller differences are ignored, as in `hocket bench compare`."""
_MOST_TEXT = 2000


@dataclass(frozen=True)
class BenchValue:
    """The median of one way at one size, in the unit of the benchmark.

    Args:
        way: short name of the library and its options.
        nbytes: of a message.
        value: the median; the slowest rank counts.
        low, high: its 95 % interval; null: there are too few samples.
        is_fastest: whether it is clearly faster than all other ways at this size.
        overlap: percent of a non-blocking operation that a matrix product hides.
        p50_us, p99_us, max_us: times of single operations in microseconds.
        num_timed: number of operations that were timed.
    """

    way: str
    nbytes: int
    value: float
    low: float | None
    high: float | None
    is_fastest: bool
    overlap: float | None
    p50_us: float
    p99_us: float
    max_us: float
    num_timed: int


@dataclass(frozen=True)
class BenchPart:
    """One benchmark between one number of ranks; "common" has the options that all ways share."""

    benchmark: str
    summary: str
    unit: str
    has_sizes: bool
    num_ranks: int
    common: str
    ways: list[str]
    values: list[BenchValue]


@dataclass(frozen=True)
class BenchDifference:
    """A point of both files; "ratio" is the time now, relative to the time before."""

    case: str
    before: float
    now: float
    unit: str
    ratio: float
    low: float | None
    high: float | None
    verdict: str


@dataclass(frozen=True)
class BenchDifferences:
    """What differs from another file; "problem" says why nothing can be compared."""

    before: str
    problem: str
    rows: list[BenchDifference]


@dataclass(frozen=True)
class BenchAnswer:
    """The answer.

    Args:
        host, time, command: where, when and how it was measured, as the file says; "": it does not say.
        core_factor, foreign_busy, warnings: as in `hocket.bench.Run`.
        benchmarks: all benchmarks of the file.
        differences: from each other file that was opened before this one.
    """

    host: str
    time: str
    command: str
    core_factor: float
    foreign_busy: float
    warnings: list[str]
    benchmarks: list[BenchPart]
    differences: list[BenchDifferences]


def _load(file: ResultFile) -> Run:
    return load_run(file.path)


def _make(source: ResultSource) -> BenchAnswer:
    run: Run = source.value
    machine = (source.result.file.content or {}).get("machine")
    facts = machine if isinstance(machine, dict) else {}
    ordered = sorted(run.results, key=lambda each: (each.point.benchmark, each.num_ranks))
    parts = [
        _part(benchmark, num_ranks, list(results))
        for (benchmark, num_ranks), results in groupby(ordered, lambda each: (each.point.benchmark, each.num_ranks))
    ]
    differences = [_differences(each, run) for each in source.earlier(KIND)]
    return BenchAnswer(
        _text_in(facts, "host"), _text_in(facts, "time"), _command(facts), run.core_factor, run.foreign_busy,
        list(run.warnings), parts, differences,
    )  # fmt: skip


def _text_in(facts: Mapping[str, Any], name: str) -> str:
    value = facts.get(name)
    return value[:_MOST_TEXT] if isinstance(value, str) else ""


def _command(facts: Mapping[str, Any]) -> str:
    words = facts.get("command")
    return " ".join(map(str, ["hocket", *words[1:]]))[:_MOST_TEXT] if isinstance(words, list) else ""


def _part(name: str, num_ranks: int, results: Sequence[Result]) -> BenchPart:
    benchmark = find_benchmark(name)
    labels, common = labels_of(each.point for each in results)
    values = []
    for nbytes in sorted({each.point.nbytes for each in results}):
        of_size = {each.point.way: each for each in results if each.point.nbytes == nbytes}
        best = clearly_fastest(of_size.values())
        values += [_value(labels[way], each, each is best) for way, each in of_size.items()]
    return BenchPart(
        name, benchmark.summary, benchmark.unit, benchmark.has_sizes, num_ranks, common, list(labels.values()), values
    )


def _value(way: str, result: Result, is_fastest: bool) -> BenchValue:
    low, high = result.interval or (None, None)
    return BenchValue(
        way, result.point.nbytes, result.value, low, high, is_fastest, result.overlap, result.percentile(50),
        result.percentile(99), result.percentile(100), result.num_timed,
    )  # fmt: skip


def _differences(before: LoadedResult, run: Run) -> BenchDifferences:
    try:
        found = compare(before.value.results, run.results, least=_LEAST, paired=False)
    except InvalidArgument as error:  # they share no point
        return BenchDifferences(before.name, str(error), [])
    rows = []
    for row in found.rows:
        low, high = row.interval or (None, None)
        rows.append(BenchDifference(row.case, row.first, row.second, row.unit, row.ratio, low, high, row.verdict))
    return BenchDifferences(before.name, "", rows)


KIND = "bench"
RESULT = ResultKind(
    KIND, "results of benchmarks", "hocket bench run --format json", HEAD, BenchAnswer, _load, _make
)  # fmt: skip
