"""How many actions of pipeline schedules are simulated a second, against torch's own simulation of its tables.

One process. Ours finds out what every action waits for, runs the table on the virtual clock with its costs, and says
what ranks hold; torch's counts steps, without costs (torch.distributed.pipelining.schedules._simulate_comms_compute).
Both are given the same actions, messages included. A table of 64 ranks and 1,024 micro-batches, made, simulated and
its memory counted, is to take less than 5 s.
"""

from __future__ import annotations

import csv
import gc
import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

from claim import Found, Options, run_claim

from hocket.measure import Comparison, Contender, Measurement, Row, Settings, Team, measure, pin, progress
from hocket.pipeline import PipelineSchedule, build, lower_messages, simulate
from hocket.pipeline.formats import torch_csv

OURS, TORCH = "hocket simulate, with costs and memory", "torch _simulate_comms_compute, in steps"
COMPARED = (("1f1b", 8, 32), ("interleaved", 8, 64), ("zb-v", 16, 128))
LARGE = (("1f1b", 64, 1024), ("chimera", 64, 1024), ("zb-v", 64, 1024))
MOST_S = 5.0


def simulate_anew(schedule: PipelineSchedule) -> None:
    """Simulates without anything that an earlier run left behind."""
    timeline = simulate(replace(schedule))
    timeline.peak_nbytes.max()


def torch_simulation(schedule: PipelineSchedule) -> Callable[[], object]:
    """The same table in torch's simulation."""
    from torch.distributed.pipelining.schedules import _Action, _simulate_comms_compute

    rows = csv.reader(io.StringIO(torch_csv.dump(schedule)))
    actions = {rank: [_Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}
    ranks = schedule.placement.ranks[0]
    return lambda: _simulate_comms_compute(actions, lambda stage: ranks[stage], schedule.num_stages)


def compared(settings: Settings) -> tuple[Measurement, dict[str, PipelineSchedule]]:
    """The same tables in both simulations, in turn."""
    contenders, tables = [], {}
    for name, num_ranks, num_micro_batches in COMPARED:
        case = f"{name}, {num_ranks} ranks, {num_micro_batches} micro-batches"
        tables[case] = schedule = lower_messages(build(name, num_ranks, num_micro_batches), "fifo")
        contenders.append(Contender.of_call(case, OURS, partial(simulate_anew, schedule)))
        contenders.append(Contender.of_call(case, TORCH, torch_simulation(schedule)))
    return alone(contenders, "tables in both", settings), tables


def large(settings: Settings) -> tuple[Measurement, dict[str, PipelineSchedule]]:
    """Large tables, made and simulated."""
    contenders, tables = [], {}
    for recipe in LARGE:
        case = "{}, {} ranks, {} micro-batches, made and simulated".format(*recipe)
        tables[case] = build(*recipe)
        contenders.append(Contender.of_call(case, OURS, lambda recipe=recipe: simulate_anew(build(*recipe))))
    return alone(contenders, "large tables", replace(settings, again=False)), tables


def alone(contenders: list[Contender], words: str, settings: Settings) -> Measurement:
    """In this process; what it has set up is left out of the collections of garbage that strike either side."""
    gc.collect()
    gc.freeze()
    with progress(words) as on_round:
        return measure(Team(contenders, 0, lambda: None, lambda values: [values]), settings, on_round=on_round)


def parts(options: Options) -> Found:
    pin(0)
    both, tables = compared(options.settings)
    made, large_tables = large(options.settings)
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
    run_claim("simulated actions a second, against torch's simulation and a limit", parts)
