"""Times of gradient engines: for each model and number of ranks which engine is the fastest, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hocket.bench.engine_times import HEAD, EngineTime, EngineTimes, rivals_of
from hocket.measure.comparison import MAX_FOREIGN_BUSY
from hocket.observe.serve.result import ResultFile, ResultKind, ResultSource


@dataclass(frozen=True)
class EnginesRow:
    """The time of a step with one engine.

    Args:
        engine: its name, and its options.
        ms, low_ms, high_ms: median of a step with its 95 % interval; all are equal in a simulation.
        times_fastest: how many times as long it takes as the fastest engine of its group.
        is_fastest: whether it is clearly the fastest of its group: its interval overlaps no other.
        ns_per_byte: nanoseconds of a step for each byte of gradients.
        samples_per_s: samples of all ranks in a second.
    """

    engine: str
    ms: float
    low_ms: float
    high_ms: float
    times_fastest: float
    is_fastest: bool
    ns_per_byte: float
    samples_per_s: float


@dataclass(frozen=True)
class EnginesGroup:
    """Engines under the same conditions, which can be compared.

    Args:
        model, nbytes: whose gradients, and their bytes.
        batch: samples of each rank in a step.
        compute_ms: milliseconds of computation in a step beside the exchange.
        num_ranks, num_hosts: of the job.
        is_simulated: whether the ranks were virtual.
        fastest: the engine with the shortest time.
        rivals: engines whose intervals overlap that of the fastest.
        rows: all engines of the group.
    """

    model: str
    nbytes: int
    batch: int
    compute_ms: float
    num_ranks: int
    num_hosts: int
    is_simulated: bool
    fastest: str
    rivals: list[str]
    rows: list[EnginesRow]


@dataclass(frozen=True)
class EnginesAnswer:
    """The answer.

    Args:
        core_factor: how much more two independent processes computed at once.
        foreign_busy, is_judged: share of the CPU time that other programs took, and whether that is little enough.
        link: what connects the virtual ranks of simulated rows; "": nothing was simulated.
        engines: all engines, in the order of the file.
        groups: engines that can be compared with each other, in the order of the file.
    """

    core_factor: float
    foreign_busy: float
    is_judged: bool
    link: str
    engines: list[str]
    groups: list[EnginesGroup]


def _load(file: ResultFile) -> EngineTimes:
    return EngineTimes.from_json(file.text, str(file.path))


def _make(source: ResultSource) -> EnginesAnswer:
    times: EngineTimes = source.value
    groups: dict[tuple[object, ...], list[EngineTime]] = {}
    for row in times.rows:
        key = (row.model, row.nbytes, row.batch, row.compute_ms, row.num_ranks, row.num_hosts, row.is_simulated)
        groups.setdefault(key, []).append(row)
    return EnginesAnswer(
        times.core_factor, times.foreign_busy, times.foreign_busy <= MAX_FOREIGN_BUSY, times.link,
        list(dict.fromkeys(row.engine for row in times.rows)), [_group(rows) for rows in groups.values()],
    )  # fmt: skip


def _group(rows: Sequence[EngineTime]) -> EnginesGroup:
    fastest, rivals = rivals_of(rows)
    shown = [
        EnginesRow(
            row.engine, row.ms, row.low_ms, row.high_ms, row.ms / fastest.ms,
            row is fastest and len(rows) > 1 and not rivals, row.ns_per_byte, row.samples_per_s,
        )
        for row in rows
    ]  # fmt: skip
    return EnginesGroup(
        fastest.model, fastest.nbytes, fastest.batch, fastest.compute_ms, fastest.num_ranks, fastest.num_hosts,
        fastest.is_simulated, fastest.engine, [each.engine for each in rivals], shown,
    )  # fmt: skip


RESULT = ResultKind(
    "engines", "times of gradient engines", "hocket bench engines -o FILE", HEAD, EnginesAnswer, _load, _make
)  # fmt: skip
