"""How long steps of pipeline schedules take, and how much memory, beside what the simulator says.

Stages that sleep, on 2, 4 and 8 ranks: the step is to take what was simulated, within 5 %. Stages that compute, on two
ranks: within 10 % of what the simulator makes of their passes, measured alone in the same round, where two ranks that
compute at once have as many cores as the passes of both stages at once show in that round. Chimera is compared with
1F1B and GPipe, and torch.distributed.pipelining executes the same steps. Peaks of memory are those of the processes.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from libraries import job
from pipeline_rank import (
    AT_ONCE,
    OF_TORCH,
    PARTS,
    REAL,
    STEP,
    TIMED,
    TORCH,
    case_of,
    memory,
    table,
    timed_seconds,
)

import hocket as hk
from hocket.measure import (
    Comparison,
    Coordinator,
    Key,
    Measurement,
    Row,
    Settings,
    finish,
    judge,
    measure,
    median_interval,
    null_rows,
    progress,
    report,
    run_script,
    script_parser,
    settings_of,
)
from hocket.measure.judge import LOW_END, MAX_FOREIGN_BUSY, MIN_ROUNDS
from hocket.measure.rounds import AGAIN
from hocket.measure.statistics import MIN_VALUES
from hocket.pipeline import CostModel, PipelineTimeline, simulate
from hocket.sim import Link

RANK_SCRIPT = Path(__file__).with_name("pipeline_rank.py")
TIMED_RANKS = (2, 4, 8)
REAL_RANKS = 2
TIMED_TARGET, REAL_TARGET = 0.95, 0.9
PASSES = ("F", "B", "I", "W", "R")


def timed_rows(
    settings: Settings, folder: Path, numbers: list[int], unit_s: float
) -> tuple[list[Row], list[Measurement]]:
    """Stages that sleep: no cores are needed but for the library's own work."""
    rows, measurements = [], []
    for num_ranks in numbers:
        ranks = job("hocket", RANK_SCRIPT, ["timed", str(folder), str(unit_s)], num_ranks)
        with (
            Coordinator([ranks], start_timeout_s=600.0) as coordinator,
            progress(f"{num_ranks} ranks that sleep") as on_round,
        ):
            measured = measure(coordinator, replace(settings, core_rounds=0, again=False), on_round=on_round)
        simulated = {}
        for each in TIMED:
            made = table(each, num_ranks)
            seconds = simulate(made, CostModel(seconds=timed_seconds(made.num_stages, unit_s))).makespan_s
            simulated[case_of(each, num_ranks)] = [seconds] * len(measured.rounds)
        rows += [agreement(measured, case, seconds, TIMED_TARGET) for case, seconds in simulated.items()]
        rows += chimera_rows(measured, simulated, [case_of(each, num_ranks) for each in TIMED])
        measurements.append(measured)
    return rows, measurements


def real_rows(settings: Settings, folder: Path) -> tuple[list[Row], list[Measurement]]:
    """Stages that compute."""
    ranks = job("hocket", RANK_SCRIPT, ["real", str(folder), "0"], REAL_RANKS)
    with Coordinator([ranks]) as coordinator, progress("ranks that compute") as on_round:
        measured = measure(coordinator, settings, on_round=on_round)
    link = Link(**json.loads((folder / "link.json").read_text()))
    costs = costs_of_rounds(measured, link)
    factors = core_factors(measured)
    simulated = {}
    for each in REAL:
        made = table(each, REAL_RANKS)
        simulated[case_of(each, REAL_RANKS)] = [
            seconds_on_shared_cores(simulate(made, cost), factor) for cost, factor in zip(costs, factors, strict=True)
        ]
    cases = [case_of(each, REAL_RANKS) for each in REAL]
    rows = [agreement(measured, case, simulated[case], REAL_TARGET) for case in cases]
    # What no simulator could do better: the same step a second time in the same round.
    rows += [agreement(measured, case, step_seconds(measured, case, STEP + AGAIN), None, "itself") for case in cases]
    for number in sorted({number for _, number, _ in REAL}):
        rows += chimera_rows(measured, simulated, [case_of(each, REAL_RANKS) for each in REAL if each[1] == number])
    rows += [
        judge(measured, Comparison(case_of(each, REAL_RANKS), STEP, (OF_TORCH,), 1.0, unit="ms"))
        for each in REAL
        if each[0] in TORCH
    ]
    return [*rows, *null_rows(measured, "ms")], [measured]


def agreement(
    measurement: Measurement, case: str, other: list[float], target: float | None, rival: str = "simulated"
) -> Row:
    """The shorter by the longer one of the time measured and another one, such as the simulated, round by round."""
    measured = step_seconds(measurement, case)
    row = row_of(f"{case}: step", rival, measured, other)
    shares = [min(a, b) / max(a, b) for a, b in zip(measured, other, strict=True)]
    row = replace(row, ratio=median(shares), interval=interval_of(shares), target=target)
    if (
        target is None
        or len(shares) < MIN_ROUNDS
        or measurement.foreign_busy > MAX_FOREIGN_BUSY
        or row.interval is None
    ):
        return row
    return replace(row, holds=row.ratio >= target and row.interval[0] >= LOW_END * target)


def chimera_rows(measurement: Measurement, simulated: dict[str, list[float]], cases: list[str]) -> list[Row]:
    """How many times faster Chimera is than GPipe and 1F1B, measured and simulated."""
    of_name = {case.split(",")[0]: case for case in cases}
    measured = {case: step_seconds(measurement, case) for case in cases}
    ours = of_name["chimera"]
    return [
        row_of(f"{ours}: {how}", rival, seconds[ours], seconds[of_name[rival]])
        for rival in ("gpipe", "1f1b")
        for how, seconds in (("measured", measured), ("simulated", simulated))
    ]


def row_of(case: str, rival: str, ours: list[float], theirs: list[float]) -> Row:
    """Seconds of rounds beside each other."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    times = 1e3 * median(ours), 1e3 * median(theirs)
    return Row(case, rival, *times, "ms", median(ratios), interval_of(ratios), None, None)


def interval_of(values: list[float]) -> tuple[float, float] | None:
    return median_interval(values) if len(values) >= MIN_VALUES else None


def step_seconds(measurement: Measurement, case: str, name: str = STEP) -> list[float]:
    return [each.seconds[Key(case, name)] for each in measurement.rounds]


def costs_of_rounds(measurement: Measurement, link: Link) -> list[CostModel]:
    """What stages cost alone, in every round."""
    found = []
    for each in measurement.rounds:
        forward = [each.seconds[Key(PARTS, f"F of stage {stage}")] for stage in range(REAL_RANKS)]
        both = [each.seconds[Key(PARTS, f"F and B of stage {stage}")] for stage in range(REAL_RANKS)]
        backward = [max(0.0, b - f) for f, b in zip(forward, both, strict=True)]
        found.append(CostModel(seconds={"F": forward, "B": backward}, fabric=link))
    return found


def core_factors(measurement: Measurement) -> list[float]:
    """How many cores two ranks have for this work, in every round."""
    found = []
    for each in measurement.rounds:
        alone = [each.seconds[Key(PARTS, f"F and B of stage {stage}")] for stage in range(REAL_RANKS)]
        found.append(min(REAL_RANKS, sum(alone) / each.seconds[Key(PARTS, AT_ONCE)]))
    return found


def seconds_on_shared_cores(timeline: PipelineTimeline, num_cores: float) -> float:
    """The time that a simulated step takes where ranks that compute at once share fewer cores than they are.

    All of them go slower by the same factor then, so that nothing changes its order: times in which r ranks compute
    are longer by r / num_cores, and all others stay.
    """
    columns = timeline.schedule.columns
    computes = np.array([kind in PASSES for kind in columns.kinds])[columns.kind]
    edges = np.concatenate([timeline.begin_s[computes], timeline.end_s[computes]])
    change = np.repeat([1, -1], computes.sum())
    order = np.argsort(edges, kind="stable")
    num_busy = np.cumsum(change[order])[:-1]
    added = np.diff(edges[order]) * np.maximum(0.0, num_busy / num_cores - 1)
    return timeline.makespan_s + float(added.sum())


def memory_rows() -> list[Row]:
    """Peaks of the ranks, of activations; the rank with the highest one."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 16)  # of the ranks
    rows = []
    for case, predicted, measured in hk.spawn(memory, REAL_RANKS)[0]:
        ours, theirs = max(measured) / 2**20, max(predicted) / 2**20
        rows.append(Row(f"{case}: peak", "predicted", ours, theirs, "MiB", theirs / ours, None, None, None))
    return rows


def main() -> int:
    parser = script_parser(__doc__.split("\n\n")[0])
    parser.add_argument("--part", action="append", choices=("timed", "real", "memory"), help="may be repeated")
    parser.add_argument("--ranks", action="append", type=int, choices=TIMED_RANKS, help="that sleep; may be repeated")
    parser.add_argument("--pass-ms", type=float, default=50.0, help="of a stage that sleeps (default 50)")
    options = parser.parse_args()
    parts = options.part or ["timed", "real", "memory"]
    rows: list[Row] = []
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory() as folder:
        settings, path = settings_of(options), Path(folder)
        if "timed" in parts:
            found, measured = timed_rows(settings, path, options.ranks or TIMED_RANKS, options.pass_ms / 1e3)
            rows, measurements = rows + found, measurements + measured
        if "real" in parts:
            found, measured = real_rows(settings, path)
            rows, measurements = rows + found, measurements + measured
    if "memory" in parts:
        rows += memory_rows()
    claim = "steps of pipeline schedules take the time and the memory that were simulated"
    return finish(report(claim, rows, measurements), options)


if __name__ == "__main__":
    run_script(main)
