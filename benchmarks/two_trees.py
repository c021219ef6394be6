"""Regression check: the operations that most programs wait for, in this and another checkout.

Both checkouts need their .venv (`make install`). Their ranks are separate processes, whose samples alternate.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from claim import Options, PartResults, option, run_claim
from starts import STARTS, measure_starts

from hocket.measure import Comparison, Contender, Job, direct_job, pin, serve

THIS, OTHER = "this checkout", "the other one"
ALL_REDUCE, ROUND_TRIP = "all_reduce of 16 bytes", "16 bytes there and back"
DDP_STEP, PIPELINE_STEP = "DDP step", "pipeline step"
CASES = (ALL_REDUCE, ROUND_TRIP, DDP_STEP, PIPELINE_STEP)
TARGET = 0.97  # two runs of the same code differ by as much
WIDTH, NUM_MICRO_BATCHES = 256, 4


def serve_rank(name: str) -> None:
    """Run one rank of a checkout, which may be older than this script: use no new features of hocket here."""
    import numpy as np
    import torch
    import torch.distributed as dist

    import hocket as hk
    from hocket import pipeline
    from hocket.train import MicroBatch, PipelineExecutor, graph_of

    torch.set_num_threads(1)
    comm = hk.init(progress="caller")
    pin(comm.rank)
    x, y = np.ones(4, np.float32), np.ones(4, np.float32)
    peer = 1 - comm.rank
    calls = [partial(comm.send, x, peer), partial(comm.recv, y, peer)]
    first, second = calls if comm.rank == 0 else reversed(calls)

    def there_and_back(iterations: int) -> None:
        for _ in range(iterations):
            first()
            second()

    def network() -> torch.nn.Sequential:
        torch.manual_seed(0)
        layers = [each for _ in range(4) for each in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())]
        return torch.nn.Sequential(*layers)

    dist.init_process_group("hocket")
    replica = torch.nn.parallel.DistributedDataParallel(network())
    inputs = torch.ones(8, WIDTH)

    def ddp_step() -> None:
        replica.zero_grad()
        replica(inputs).sum().backward()

    graph = graph_of(network())
    split = graph.split([0, len(graph.layers) // 2, len(graph.layers)])
    table = pipeline.build("1f1b", 2, NUM_MICRO_BATCHES)
    executor = PipelineExecutor(table, split, comm, lambda output, _: output.sum())
    batch = [MicroBatch({split.batch_inputs[0]: part}, None) for part in inputs.split(8 // NUM_MICRO_BATCHES)]

    contenders = [
        Contender.of_call(ALL_REDUCE, name, partial(comm.all_reduce, x, "max")),
        Contender(ROUND_TRIP, name, there_and_back),
        Contender.of_call(DDP_STEP, name, ddp_step),
        Contender.of_call(PIPELINE_STEP, name, partial(executor.step, batch)),
    ]
    serve(contenders, comm.rank, comm.barrier)
    executor.close()
    dist.destroy_process_group()
    comm.finalize()


def both_trees(other: str) -> dict[str, Path]:
    """Return both checkouts by name; raise ArgumentTypeError if one has no environment."""
    trees = {THIS: Path(__file__).resolve().parents[1], OTHER: Path(other).resolve()}
    for tree in trees.values():
        if not (tree / ".venv" / "bin" / "python").exists():
            raise ArgumentTypeError(f"{tree} has no .venv: run `make install` there first")
    return trees


def jobs_of(trees: Mapping[str, Path], script: str) -> list[Job]:
    """Return a job of two ranks for each checkout, ``SCRIPT --rank NAME`` under its own Python."""
    return [
        direct_job(name, (str(tree / ".venv/bin/python"), script, "--rank", name), 2, {"OMP_NUM_THREADS": "1"})
        for name, tree in trees.items()
    ]


CHECKOUT = option("trees", type=both_trees, metavar="CHECKOUT", help="folder of the other checkout")


def parts(options: Options) -> PartResults:
    jobs = jobs_of(options.trees, __file__)
    measurement = measure_starts(jobs, options.starts, "", options.settings)
    yield [Comparison(case, THIS, (OTHER,), TARGET) for case in CASES], measurement


if __name__ == "__main__":
    run_claim(
        "the operations that most programs wait for are not slower than in the other checkout",
        parts,
        CHECKOUT,
        STARTS,
    )
