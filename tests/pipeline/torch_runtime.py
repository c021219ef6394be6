"""Run tables of hocket on one rank of torch's pipelining runtime, over gloo (started by a test).

Usage: torch_runtime.py RANK NUM_RANKS FOLDER TABLE...

Every stage has two layers. The gradients of each table must be bitwise equal to those of one process that adds the same
micro-batches in the same order.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from hocket.pipeline.files import load_schedule

WIDTH, SAMPLES = 6, 3  # of a layer, and of a micro-batch


def make_stages(num_stages: int) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    return [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
        for _ in range(num_stages)
    ]


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).sum()


def expected_gradients(
    num_stages: int, x: torch.Tensor, target: torch.Tensor, num_micro_batches: int
) -> list[torch.Tensor]:
    stages = make_stages(num_stages)
    model = torch.nn.Sequential(*stages)
    for inputs, targets in zip(x.chunk(num_micro_batches), target.chunk(num_micro_batches), strict=True):
        loss_of(model(inputs), targets).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def run(table: Path, rank: int) -> None:
    schedule = load_schedule(table)
    num_stages, num_micro_batches = schedule.num_stages, schedule.num_micro_batches
    modules = make_stages(num_stages)
    mine = [stage for _, stage in schedule.placement.stages_of(rank)]
    stages = [PipelineStage(modules[stage], stage, num_stages, torch.device("cpu")) for stage in mine]
    runtime = _PipelineScheduleRuntime(stages, num_micro_batches, loss_fn=loss_of, scale_grads=False)
    has_messages = any("SEND" in kind for kind in schedule.columns.kinds)
    runtime._load_csv(str(table), format="compute_comms" if has_messages else "compute_only")
    torch.manual_seed(1)
    x, target = torch.randn(2, num_micro_batches * SAMPLES, WIDTH)
    inputs = [x] if 0 in mine else []
    keywords = {"target": target, "losses": []} if num_stages - 1 in mine else {}
    runtime.step(*inputs, **keywords)
    reference = expected_gradients(num_stages, x, target, num_micro_batches)
    per_stage = len(reference) // num_stages
    for stage in mine:
        computed = [parameter.grad for parameter in modules[stage].parameters()]
        expected = reference[stage * per_stage : (stage + 1) * per_stage]
        same = [torch.equal(a, b) for a, b in zip(computed, expected, strict=True) if a is not None]
        assert same == [True] * per_stage, f"{table.name}, rank {rank}, stage {stage}: {same}"


def main() -> None:
    rank, num_ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=num_ranks)
    for name in sys.argv[4:]:
        run(folder / name, rank)
        print(f"rank {rank}: {name} equal", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
