"""One rank of pipeline.py: steps of pipeline schedules, of stages that sleep or compute.

pipeline_rank.py hocket timed|real FOLDER

FOLDER gets link.json: what a message takes between the ranks of real stages.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import hocket as hk
from hocket.measure import Contender, pin, serve
from hocket.pipeline import PipelineSchedule, build, recompute, simulate
from hocket.train import (
    MicroBatch,
    PipelineExecutor,
    SplitModel,
    costs_of_stages,
    graph_of,
    measure_link,
    profile_stages,
)

TIMED = (
    ("gpipe", 8, {}),
    ("1f1b", 8, {}),
    ("interleaved", 8, {}),
    ("zb-h1", 8, {}),
    ("zb-v", 8, {}),
    ("chimera", 8, {}),
    ("dualpipe", 16, {}),
)
PARTS, AT_ONCE = "passes of stages", "F and B of both stages at once"
REAL = tuple((name, number, {}) for number in (2, 4, 8) for name in ("gpipe", "1f1b", "chimera"))
MEMORY = (("gpipe", 8, {}), ("1f1b", 8, {}), ("zb-h1", 8, {}), ("chimera", 8, {}), ("gpipe", 8, {"recompute": True}))
TORCH = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
STEP, OF_TORCH = "hocket", "torch.distributed.pipelining over gloo"
SAMPLES, SEQUENCE, WIDTH = 8, 64, 128  # of a micro-batch of real stages
LAYERS = 2  # of a real stage
MEMORY_SAMPLES = 64
Loop = Callable[[int], None]


class _SleepBack(torch.autograd.Function):
    """Takes its time in the forward pass, and in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)  # late by 0.1 ms; who spun instead would take the core from ranks that have to wake
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.backward_s)
        return gradient.clone(), None, None


class TimedStage(nn.Module):
    """Sleeps as long as a stage would compute; gradients of inputs and of weights take theirs apart.

    The first one has no gradient of inputs to find: all of its backward pass is weights.
    """

    def __init__(self, unit_s: float, weight_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.unit_s, self.weight_s = unit_s, weight_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _SleepBack.apply(x, self.unit_s, self.unit_s) * _SleepBack.apply(self.weight, 0.0, self.weight_s)


def timed_model(num_stages: int, unit_s: float) -> SplitModel:
    stages = [TimedStage(unit_s, 2 * unit_s), *(TimedStage(unit_s, unit_s) for _ in range(num_stages - 1))]
    return graph_of(nn.Sequential(*stages)).split(list(range(num_stages + 1)))


def timed_seconds(num_stages: int, unit_s: float) -> dict[str, Any]:
    """What `TimedStage`s cost."""
    return {
        "F": unit_s,
        "B": 2 * unit_s,
        "I": [0.0, *[unit_s] * (num_stages - 1)],
        "W": [2 * unit_s, *[unit_s] * (num_stages - 1)],
    }


def real_stage() -> nn.Module:
    """Some layers of a transformer."""
    return nn.Sequential(
        *(
            nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
    )


def real_model(num_stages: int) -> SplitModel:
    return graph_of(nn.Sequential(*(real_stage() for _ in range(num_stages)))).split(list(range(num_stages + 1)))


def case_of(schedule: tuple[str, int, dict[str, Any]], num_ranks: int) -> str:
    name, num_micro_batches, options = schedule
    more = "".join(f", {key}" for key in options)
    return f"{name}{more}, {num_ranks} ranks, {num_micro_batches} micro-batches"


def table(schedule: tuple[str, int, dict[str, Any]], num_ranks: int) -> PipelineSchedule:
    """The schedule of a case, as it is executed and simulated."""
    name, num_micro_batches, options = schedule
    made = build(name, num_ranks, num_micro_batches)
    return recompute(made) if options.get("recompute") else made


def looped(call: Callable[[], object]) -> Loop:
    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            call()

    return run


def together(comm: hk.Communicator, step: Callable[[], object]) -> Loop:
    """Steps that all ranks begin at once: what one does earlier than another is none of the step's time."""

    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            comm.barrier()
            step()

    return run


def nothing(iterations: int) -> None:
    """What a rank does while another one works alone."""


def timed(comm: hk.Communicator, unit_s: float) -> list[Contender]:
    """A step of every schedule with stages that sleep."""
    found = []
    for schedule in TIMED:
        made = table(schedule, comm.size)
        executor = PipelineExecutor(made, timed_model(made.num_stages, unit_s), comm, lambda output, _: output.sum())
        batches = [MicroBatch({"input": torch.ones(64)}) for _ in range(made.num_micro_batches)]
        executor.step(batches)
        found.append(Contender(case_of(schedule, comm.size), STEP, together(comm, partial(executor.step, batches))))
    return found


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output, target)


def real(comm: hk.Communicator, folder: Path) -> list[Contender]:
    """A step of every schedule with stages that compute, here and in torch; and the stages alone, and at once."""
    found = parts(comm)
    for schedule in REAL:
        name, number, _ = schedule
        made = table(schedule, comm.size)
        executor = PipelineExecutor(made, real_model(comm.size), comm, loss_of)
        x, y = (torch.randn(number, SAMPLES, SEQUENCE, WIDTH) for _ in range(2))
        batches = [MicroBatch({"input": x[k]}, y[k], 1 / number) for k in range(number)]
        executor.step(batches)
        case = case_of(schedule, comm.size)
        found.append(Contender(case, STEP, together(comm, partial(executor.step, batches))))
        if name in TORCH:
            step = torch_step(name, comm, x.flatten(0, 1), y.flatten(0, 1))
            found.append(Contender(case, OF_TORCH, together(comm, step)))
    link = measure_link(comm)
    if comm.rank == 0:
        (folder / "link.json").write_text(json.dumps(asdict(link)))
    return found


def parts(comm: hk.Communicator) -> list[Contender]:
    """Passes of each stage on its rank while the other one waits, and of both at once."""
    is_last = comm.rank == comm.size - 1
    module = real_stage()
    x = torch.randn(SAMPLES, SEQUENCE, WIDTH, requires_grad=comm.rank > 0)
    other = torch.randn(SAMPLES, SEQUENCE, WIDTH)

    def forward() -> torch.Tensor:
        output = module(x)
        return loss_of(output, other) if is_last else output

    def both() -> None:
        forward().backward(None if is_last else other)

    found = []
    for stage in range(comm.size):
        here = stage == comm.rank
        found.append(Contender(PARTS, f"F of stage {stage}", looped(forward) if here else nothing))
        found.append(Contender(PARTS, f"F and B of stage {stage}", looped(both) if here else nothing))
    return [*found, Contender(PARTS, AT_ONCE, looped(both))]


def torch_step(name: str, comm: hk.Communicator, x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    """The same step by torch.distributed.pipelining."""
    module = real_stage()
    stage = PipelineStage(module, comm.rank, comm.size, torch.device("cpu"))
    schedule = TORCH[name](stage, n_microbatches=x.shape[0] // SAMPLES, loss_fn=loss_of)

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
    """Bytes that activations take at most, as predicted and as the kernel counted, of each case and rank.

    The allocator has to be one that gives every array its own pages, and gives them back: MALLOC_MMAP_THRESHOLD_.
    """
    torch.set_num_threads(1)
    found = []
    for schedule in MEMORY:
        made = table(schedule, comm.size)
        split = real_model(comm.size)
        x = torch.randn(MEMORY_SAMPLES, SEQUENCE, WIDTH)
        costs = replace(costs_of_stages(profile_stages(split, {"input": x}, repeats=1)), weight_nbytes=0.0)
        batches = [MicroBatch({"input": x}, x, 1 / made.num_micro_batches) for _ in range(made.num_micro_batches)]
        with PipelineExecutor(made, split, comm, loss_of) as executor:
            measured = 0
            for _ in range(3):  # the first two allocate what stays: gradients, buffers of messages
                gc.collect()
                before = status_of("VmRSS")
                Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
                executor.step(batches)
                measured = status_of("VmHWM") - before
        predicted = simulate(made, costs).peak_nbytes.tolist()
        found.append((case_of(schedule, comm.size), predicted, comm.all_gather_object(float(measured))))
    return found


def status_of(name: str) -> int:
    """Bytes, of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    what, folder, unit_s = sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])
    torch.set_num_threads(1)
    comm = hk.init()
    if what == "real":
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=comm.rank, world_size=comm.size)
        contenders = real(comm, folder)
        pin(comm.rank)  # after hocket's start, which must not take a bound rank for one that shares its core
    else:
        contenders = timed(comm, unit_s)
    serve(contenders, comm.rank, comm.barrier)
    comm.finalize()


if __name__ == "__main__":
    main()
