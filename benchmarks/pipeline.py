"""Time and memory of steps of pipeline schedules, compared with the simulator.

Sleeping stages, on 2, 4 and 8 ranks: the time of a step must be within 5 % of the simulated time.

Computing stages, on two ranks: the time must be within 10 % of the simulated time. The simulator uses the times of the
passes, measured alone in the same round. The number of cores that two computing ranks share is also measured in each
round, by the passes of both stages at the same time.

Chimera is compared with 1F1B and GPipe. torch.distributed.pipelining executes the same steps. Peaks of memory are those
of the processes.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from claim import Options, PartResults, measure_jobs, measure_with_facts, option, run_claim
from libraries import job
from ranks import serve_all
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import hocket as hk
from hocket import train
from hocket.measure import Comparison, Contender, Measurement, Row, computed, judge_values, pin
from hocket.measure.comparison import MAX_FOREIGN_BUSY
from hocket.measure.loops import Call, Loop, in_turn, looped, nothing
from hocket.measure.rounds import AGAIN
from hocket.pipeline import CostModel, PipelineSchedule, PipelineTimeline, build, recompute, simulate
from hocket.sim import Link

TIMED = (*((name, 8) for name in ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "chimera")), ("dualpipe", 16))
PARTS, AT_ONCE = "passes of stages", "F and B of both stages at once"
REAL = tuple((name, number) for number in (2, 4, 8) for name in ("gpipe", "1f1b", "chimera"))
RECOMPUTED = "gpipe, recompute"
MEMORY = tuple((name, 8) for name in ("gpipe", "1f1b", "zb-h1", "chimera", RECOMPUTED))
TORCH = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
STEP, OF_TORCH = "hocket", "torch.distributed.pipelining over gloo"
SAMPLES, SEQUENCE, WIDTH = 8, 64, 128  # of a micro-batch of computing stages
LAYERS = 2  # of a computing stage
MEMORY_SAMPLES = 64
TIMED_RANKS = (2, 4, 8)
REAL_RANKS = 2
TIMED_TARGET, REAL_TARGET = 0.95, 0.9
PASSES = ("F", "B", "I", "W", "R")


class _SleepBack(torch.autograd.Function):
    """The identity function, which sleeps in its forward and backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)  # late by 0.1 ms, but spinning would take the core from other ranks
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.backward_s)
        return gradient.clone(), None, None


class TimedStage(nn.Module):
    """A stage that sleeps instead of computing; gradients of inputs and of weights have separate times.

    The first stage computes no gradient of its inputs: its whole backward pass is for weights.
    """

    def __init__(self, unit_s: float, weight_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.unit_s, self.weight_s = unit_s, weight_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _SleepBack.apply(x, self.unit_s, self.unit_s) * _SleepBack.apply(self.weight, 0.0, self.weight_s)


def timed_model(num_stages: int, unit_s: float) -> train.SplitModel:
    stages = [TimedStage(unit_s, 2 * unit_s), *(TimedStage(unit_s, unit_s) for _ in range(num_stages - 1))]
    return train.graph_of(nn.Sequential(*stages)).split(list(range(num_stages + 1)))


def timed_seconds(num_stages: int, unit_s: float) -> dict[str, Any]:
    """Return the seconds of the passes of `TimedStage`s."""
    return {
        "F": unit_s,
        "B": 2 * unit_s,
        "I": [0.0, *[unit_s] * (num_stages - 1)],
        "W": [2 * unit_s, *[unit_s] * (num_stages - 1)],
    }


def real_stage() -> nn.Module:
    """Return some layers of a transformer."""
    how = {"nhead": 4, "dim_feedforward": 4 * WIDTH, "dropout": 0.0, "batch_first": True}
    return nn.Sequential(*(nn.TransformerEncoderLayer(WIDTH, **how) for _ in range(LAYERS)))


def real_model(num_stages: int) -> train.SplitModel:
    return train.graph_of(nn.Sequential(*(real_stage() for _ in range(num_stages)))).split(list(range(num_stages + 1)))


def case_of(schedule: tuple[str, int], num_ranks: int) -> str:
    name, num_micro_batches = schedule
    return f"{name}, {num_ranks} ranks, {num_micro_batches} micro-batches"


def table(schedule: tuple[str, int], num_ranks: int) -> PipelineSchedule:
    """Return the schedule of a case, which is executed and simulated."""
    name, num_micro_batches = schedule
    made = build(name.partition(",")[0], num_ranks, num_micro_batches)
    return recompute(made) if name == RECOMPUTED else made


def synchronised(comm: hk.Communicator, step: Call) -> Loop:
    """Return a loop of steps that all ranks start together, so that no rank works ahead in the next step."""
    return in_turn(comm.barrier, step)


def timed_contenders(comm: hk.Communicator, unit_s: float) -> list[Contender]:
    """Return a step of every schedule with sleeping stages."""
    found = []
    for schedule in TIMED:
        made = table(schedule, comm.size)
        model = timed_model(made.num_stages, unit_s)
        executor = train.PipelineExecutor(made, model, comm, lambda output, _: output.sum())
        batches = [train.MicroBatch({"input": torch.ones(64)}) for _ in range(made.num_micro_batches)]
        executor.step(batches)
        found.append(Contender(case_of(schedule, comm.size), STEP, synchronised(comm, partial(executor.step, batches))))
    return found


def real_contenders(comm: hk.Communicator) -> list[Contender]:
    """Return a step of every schedule with computing stages, by hocket and torch, and the passes of stages."""
    found = passes(comm)
    for schedule in REAL:
        name, number = schedule
        made = table(schedule, comm.size)
        executor = train.PipelineExecutor(made, real_model(comm.size), comm, F.mse_loss)
        x, y = (torch.randn(number, SAMPLES, SEQUENCE, WIDTH) for _ in range(2))
        batches = [train.MicroBatch({"input": x[k]}, y[k], 1 / number) for k in range(number)]
        executor.step(batches)
        case = case_of(schedule, comm.size)
        found.append(Contender(case, STEP, synchronised(comm, partial(executor.step, batches))))
        if name in TORCH:
            step = torch_step(name, comm, x.flatten(0, 1), y.flatten(0, 1))
            found.append(Contender(case, OF_TORCH, synchronised(comm, step)))
    return found


def passes(comm: hk.Communicator) -> list[Contender]:
    """Return the passes of each stage on its rank while the other rank waits, and of both at the same time."""
    is_last = comm.rank == comm.size - 1
    module = real_stage()
    x = torch.randn(SAMPLES, SEQUENCE, WIDTH, requires_grad=comm.rank > 0)
    other = torch.randn(SAMPLES, SEQUENCE, WIDTH)

    def forward() -> torch.Tensor:
        return F.mse_loss(module(x), other) if is_last else module(x)

    def both() -> None:
        forward().backward(None if is_last else other)

    found = []
    for stage in range(comm.size):
        here = stage == comm.rank
        found.append(Contender(PARTS, f"F of stage {stage}", looped(forward) if here else nothing))
        found.append(Contender(PARTS, f"F and B of stage {stage}", looped(both) if here else nothing))
    return [*found, Contender(PARTS, AT_ONCE, looped(both))]


def torch_step(name: str, comm: hk.Communicator, x: torch.Tensor, y: torch.Tensor) -> Call:
    """Return the same step by torch.distributed.pipelining."""
    module = real_stage()
    stage = PipelineStage(module, comm.rank, comm.size, torch.device("cpu"))
    schedule = TORCH[name](stage, n_microbatches=x.shape[0] // SAMPLES, loss_fn=F.mse_loss)

    def step() -> None:
        for parameter in module.parameters():
            parameter.grad = None
        if comm.rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y)

    step()
    return step


def memory(comm: hk.Communicator) -> list[tuple[str, list[float], list[float]]]:
    """Return the peak bytes of activations, predicted and counted by the kernel, of each case and rank.

    The allocator must give every array its own pages and release them: set MALLOC_MMAP_THRESHOLD_.
    """
    torch.set_num_threads(1)
    found = []
    for schedule in MEMORY:
        made = table(schedule, comm.size)
        split = real_model(comm.size)
        x = torch.randn(MEMORY_SAMPLES, SEQUENCE, WIDTH)
        costs = replace(train.costs_of_stages(train.profile_stages(split, {"input": x}, repeats=1)), weight_nbytes=0.0)
        batches = [train.MicroBatch({"input": x}, x, 1 / made.num_micro_batches) for _ in range(made.num_micro_batches)]
        with train.PipelineExecutor(made, split, comm, F.mse_loss) as executor:
            measured = 0
            for _ in range(3):  # the first two steps allocate permanent memory: gradients, message buffers
                gc.collect()
                before = status_of("VmRSS")
                Path("/proc/self/clear_refs").write_text("5")  # reset VmHWM
                executor.step(batches)
                measured = status_of("VmHWM") - before
        predicted = simulate(made, costs).peak_nbytes.tolist()
        found.append((case_of(schedule, comm.size), predicted, comm.all_gather_object(float(measured))))
    return found


def status_of(name: str) -> int:
    """Return a value of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def serve_rank(_: str, what: str, unit_s: str) -> None:
    """Run one rank: steps of pipeline schedules with sleeping or computing stages.

    For computing stages, its facts are the measured costs of messages between the ranks (`Link`).
    """
    torch.set_num_threads(1)
    comm = hk.init()
    if what == "timed":
        serve_all(comm, timed_contenders(comm, float(unit_s)))
        return
    dist.init_process_group("gloo")
    contenders, link = real_contenders(comm), train.measure_link(comm)
    pin(comm.rank)  # after the start, or hocket would assume that a bound rank shares its core
    serve_all(comm, contenders, asdict(link))


def timed(options: Options) -> PartResults:
    """Measure sleeping stages: only the work of the library needs cores."""
    unit_s, settings = options.pass_ms / 1e3, replace(options.settings, core_rounds=0, again=False)
    for num_ranks in options.ranks or TIMED_RANKS:
        ranks = job("hocket", __file__, ["timed", unit_s], num_ranks)
        measurement = measure_jobs([ranks], f"{num_ranks} sleeping ranks", settings, start_timeout_s=600.0)
        simulated = {}
        for each in TIMED:
            made = table(each, num_ranks)
            seconds = simulate(made, CostModel(seconds=timed_seconds(made.num_stages, unit_s))).makespan_s
            simulated[case_of(each, num_ranks)] = [seconds] * len(measurement.rounds)
        rows = [agreement_row(measurement, case, seconds, TIMED_TARGET) for case, seconds in simulated.items()]
        yield [*rows, *chimera_rows(measurement, simulated, list(simulated))], measurement


def real(options: Options) -> PartResults:
    """Measure computing stages."""
    ranks = job("hocket", __file__, ["real", 0], REAL_RANKS)
    measurement, link = measure_with_facts([ranks], "computing ranks", options.settings)
    of_rounds = list(costs_and_cores(measurement, Link(**link)))
    simulated = {}
    for each in REAL:
        made = table(each, REAL_RANKS)
        seconds = [seconds_on_shared_cores(simulate(made, costs), cores) for costs, cores in of_rounds]
        simulated[case_of(each, REAL_RANKS)] = seconds
    cases = [case_of(each, REAL_RANKS) for each in REAL]
    rows = [agreement_row(measurement, case, simulated[case], REAL_TARGET) for case in cases]
    # The limit of any simulator: the agreement of a step with itself, repeated in the same round.
    rows += [agreement_row(measurement, case, measurement.times(case, STEP + AGAIN), None, "itself") for case in cases]
    for number in sorted({number for _, number in REAL}):
        rows += chimera_rows(measurement, simulated, [case_of(each, REAL_RANKS) for each in REAL if each[1] == number])
    in_torch = [case_of(each, REAL_RANKS) for each in REAL if each[0] in TORCH]
    rows += [Comparison(case, STEP, (OF_TORCH,), 1.0, unit="ms") for case in in_torch]
    yield rows, measurement


def agreement_row(
    measurement: Measurement, case: str, other: list[float], target: float | None, rival: str = "simulated"
) -> Row:
    """Return a row of the measured and another time; the value is the shorter divided by the longer, by round."""
    steps = measurement.times(case, STEP)
    shares = [min(a, b) / max(a, b) for a, b in zip(steps, other, strict=True)]
    is_quiet = measurement.foreign_busy <= MAX_FOREIGN_BUSY
    return judge_values(
        f"{case}: step", rival, steps, other, values=shares, target=target, can_be_judged=is_quiet, unit="ms"
    )


def chimera_rows(measurement: Measurement, simulated: dict[str, list[float]], cases: list[str]) -> list[Row]:
    """Return rows of the speed-up of Chimera over GPipe and 1F1B, measured and simulated."""
    of_name = {case.split(",")[0]: case for case in cases}
    steps = {case: measurement.times(case, STEP) for case in cases}
    ours = of_name["chimera"]
    return [
        judge_values(f"{ours}: {how}", rival, seconds[ours], seconds[of_name[rival]], unit="ms")
        for rival in ("gpipe", "1f1b")
        for how, seconds in (("measured", steps), ("simulated", simulated))
    ]


def costs_and_cores(measurement: Measurement, link: Link) -> Iterator[tuple[CostModel, float]]:
    """Yield, for every round, the costs of the stages alone and the number of cores that two ranks have for them."""
    forward, both = (
        np.transpose([measurement.times(PARTS, f"{passes} of stage {stage}") for stage in range(REAL_RANKS)])
        for passes in ("F", "F and B")
    )
    for f, fb, at_once in zip(forward, both, measurement.times(PARTS, AT_ONCE), strict=True):
        seconds = {"F": f.tolist(), "B": np.maximum(0.0, fb - f).tolist()}
        yield CostModel(seconds=seconds, fabric=link), min(REAL_RANKS, fb.sum() / at_once)


def seconds_on_shared_cores(timeline: PipelineTimeline, num_cores: float) -> float:
    """Return the time of a simulated step whose ranks share fewer cores than there are ranks.

    All computing ranks then slow down by the same factor, so the order of events stays the same: intervals in which r
    ranks compute get longer by the factor r / num_cores if this is above 1; all others stay the same.
    """
    columns = timeline.schedule.columns
    computes = np.array([kind in PASSES for kind in columns.kinds])[columns.kind]
    edges = np.concatenate([timeline.begin_s[computes], timeline.end_s[computes]])
    change = np.repeat([1, -1], computes.sum())
    order = np.argsort(edges, kind="stable")
    num_busy = np.cumsum(change[order])[:-1]
    added = np.diff(edges[order]) * np.maximum(0.0, num_busy / num_cores - 1)
    return timeline.makespan_s + float(added.sum())


def peaks(options: Options) -> PartResults:
    """Measure the peak memory of activations, on the rank with the highest peak."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 16)  # inherited by the ranks
    rows = []
    for case, predicted, found in hk.spawn(memory, REAL_RANKS)[0]:
        rows.append(computed(f"{case}: peak", "predicted", max(found) / 2**20, max(predicted) / 2**20, "MiB"))
    yield (rows,)


if __name__ == "__main__":
    run_claim(
        "steps of pipeline schedules take the simulated time and memory",
        {"timed": timed, "real": real, "memory": peaks},
        option("--ranks", action="append", type=int, choices=TIMED_RANKS, help="sleeping ranks; may be repeated"),
        option("--pass-ms", type=float, default=50.0, help="pass of a sleeping stage in ms (default 50)"),
        unit="ms",
    )
