"""Simulated actions of pipeline schedules per second, compared with torch's own simulation of its tables.

Everything runs in one process. Our simulator finds the dependencies of every action, runs the table on the virtual
clock with its costs, and computes the memory of the ranks. torch's only counts steps, without costs
(torch.distributed.pipelining.schedules._simulate_comms_compute). Both simulate the same actions, including messages.
A table of 64 ranks and 1,024 micro-batches must be made, simulated, and its memory computed, in less than 5 s.
"""

from __future__ import annotations

import csv
import gc
import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

from claim import Options, PartResults, run_claim

from hocket.measure import Comparison, Contender, Measurement, Row, Settings, Team, measure, pin, progress
from hocket.pipeline import PipelineSchedule, build, lower_messages, simulate
from hocket.pipeline.formats import torch_csv

OURS, TORCH = "hocket simulate, with costs and memory", "torch _simulate_comms_compute, in steps"
COMPARED = (("1f1b", 8, 32), ("interleaved", 8, 64), ("zb-v", 16, 128))
LARGE = (("1f1b", 64, 1024), ("chimera", 64, 1024), ("zb-v", 64, 1024))
MOST_S = 5.0


def simulate_uncached(schedule: PipelineSchedule) -> None:
    """Simulate without cached results of an earlier run."""
    timeline = simulate(replace(schedule))
    timeline.peak_nbytes.max()


def torch_simulation(schedule: PipelineSchedule) -> Callable[[], object]:
    """Return the call that simulates the same table with torch."""
    from torch.distributed.pipelining.schedules import _Action, _simulate_comms_compute

    rows = csv.reader(io.StringIO(torch_csv.dump(schedule)))
    actions = {rank: [_Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}
    ranks = schedule.placement.ranks[0]
    return lambda: _simulate_comms_compute(actions, lambda stage: ranks[stage], schedule.num_stages)


def measure_both(settings: Settings) -> tuple[Measurement, dict[str, PipelineSchedule]]:
    """Measure the same tables in both simulations, alternately."""
    contenders, tables = [], {}
    for name, num_ranks, num_micro_batches in COMPARED:
        case = f"{name}, {num_ranks} ranks, {num_micro_batches} micro-batches"
        tables[case] = schedule = lower_messages(build(name, num_ranks, num_micro_batches), "fifo")
        contenders.append(Contender.of_call(case, OURS, partial(simulate_uncached, schedule)))
        contenders.append(Contender.of_call(case, TORCH, torch_simulation(schedule)))
    return measure_here(contenders, "tables in both", settings), tables


def measure_large(settings: Settings) -> tuple[Measurement, dict[str, PipelineSchedule]]:
    """Measure large tables, which are made and simulated."""
    contenders, tables = [], {}
    for recipe in LARGE:
        case = "{}, {} ranks, {} micro-batches, made and simulated".format(*recipe)
        tables[case] = build(*recipe)
        contenders.append(Contender.of_call(case, OURS, lambda recipe=recipe: simulate_uncached(build(*recipe))))
    return measure_here(contenders, "large tables", replace(settings, again=False)), tables


def measure_here(contenders: list[Contender], words: str, settings: Settings) -> Measurement:
    """Measure in this process; garbage collection ignores the objects of the setup, so it disturbs neither side."""
    gc.collect()
    gc.freeze()
    with progress(words) as on_round:
        return measure(Team(contenders), settings, on_round=on_round)


def parts(options: Options) -> PartResults:
    pin(0)
    both, tables = measure_both(options.settings)
    made, large_tables = measure_large(options.settings)
    yield [Comparison(case, OURS, (TORCH,), 1.0, needs_cores=False) for case in tables], both
    rows = []
    for case in large_tables:
        times = made.times(case, OURS)
        seconds, interval = median(times), (MOST_S / max(times), MOST_S / min(times))
        holds = max(times) <= MOST_S
        rows.append(Row(case, f"a limit of {MOST_S:g} s", seconds, MOST_S, "s", MOST_S / seconds, interval, 1.0, holds))
    yield rows, made
    if not options.json:
        for measurement, of_measurement in ((both, tables), (made, large_tables)):
            for case, schedule in of_measurement.items():
                per_s = len(schedule) / median(measurement.times(case, OURS))
                print(f"{case}: {len(schedule)} actions, {per_s:,.0f} a second")


if __name__ == "__main__":
    run_claim("simulated actions per second, against torch's simulation and a limit", parts)
