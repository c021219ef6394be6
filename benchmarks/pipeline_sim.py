"""How many actions of pipeline schedules are simulated a second, against torch's own simulation of its tables.

One process. Ours finds out what every action waits for, runs the table on the virtual clock with its costs, and says
what ranks hold; torch's counts steps, without costs (torch.distributed.pipelining.schedules._simulate_comms_compute).
Both are given the same actions, messages included. A table of 64 ranks and 1,024 micro-batches, made, simulated and
its memory counted, is to take less than 5 s.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from hocket.measure import (
    Comparison,
    Contender,
    Row,
    Team,
    finish,
    judge,
    measure,
    null_rows,
    pin,
    progress,
    report,
    run_script,
    script_parser,
    settings_of,
)
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


def main() -> int:
    options = script_parser(__doc__.split("\n\n")[0]).parse_args()
    pin(0)
    contenders, tables = [], {}
    for name, num_ranks, num_micro_batches in COMPARED:
        case = f"{name}, {num_ranks} ranks, {num_micro_batches} micro-batches"
        tables[case] = schedule = lower_messages(build(name, num_ranks, num_micro_batches), "fifo")
        contenders.append(Contender.of_call(case, OURS, lambda schedule=schedule: simulate_anew(schedule)))
        contenders.append(Contender.of_call(case, TORCH, torch_simulation(schedule)))
    large = {}
    for name, num_ranks, num_micro_batches in LARGE:
        case = f"{name}, {num_ranks} ranks, {num_micro_batches} micro-batches, made and simulated"
        large[case] = (name, num_ranks, num_micro_batches)
        tables[case] = build(name, num_ranks, num_micro_batches)

        def run(recipe: tuple[str, int, int] = (name, num_ranks, num_micro_batches)) -> None:
            simulate_anew(build(*recipe))

        contenders.append(Contender.of_call(case, OURS, run))
    team = Team(contenders, 0, lambda: None, lambda values: [values])
    with progress("simulations") as on_round:
        measured = measure(team, settings_of(options), on_round=on_round)
    rows = [
        judge(measured, Comparison(case, OURS, (TORCH,), 1.0, needs_cores=False))
        for case in tables
        if case not in large
    ]
    for case in large:
        times = [round_.seconds[key] for round_ in measured.rounds for key in round_.seconds if key == (case, OURS)]
        rows.append(
            Row(
                case, f"a limit of {MOST_S:g} s", median(times), MOST_S, "s", MOST_S / median(times),
                (MOST_S / max(times), MOST_S / min(times)), 1.0, max(times) <= MOST_S,
            )
        )  # fmt: skip
    for case, schedule in tables.items():
        times = [round_.seconds[key] for round_ in measured.rounds for key in round_.seconds if key == (case, OURS)]
        if not options.json:
            print(f"{case}: {len(schedule)} actions, {len(schedule) / median(times):,.0f} a second")
    claim = "simulated actions a second, against torch's simulation and a limit"
    return finish(report(claim, [*rows, *null_rows(measured)], [measured]), options)


if __name__ == "__main__":
    run_script(main)
