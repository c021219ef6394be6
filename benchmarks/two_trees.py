"""Regression check: the operations that most programs wait for, in this and another checkout.

Both checkouts need their .venv (`make install`). Their ranks are separate processes, whose samples alternate.

The addresses of code and data change the time of 16 bytes by some percent, in all samples of a process. So the ranks
are started several times. The ranks that are started first are slower by some percent, also if the checkouts are equal.
So every start is followed by one in the other order, and both count as one round: the mean of the medians of each.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median

from claim import Options, PartResults, measure_jobs, option, run_claim

from hocket.measure import Comparison, Contender, Job, Key, Measurement, Round, direct_job, pin, serve
from hocket.measure.rounds import AGAIN

THIS, OTHER, FIRST = "this checkout", "the other one", "the first one"
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


def join_starts(starts: Sequence[Measurement]) -> Measurement:
    """Return one measurement with a round for each two starts; its A/A rows are of the ranks that started first."""
    rounds = [median_round(each) for each in starts]
    pairs = tuple(mean_round(*each) for each in zip(rounds[::2], rounds[1::2], strict=True))
    iterations = {Key(case, FIRST): count for (case, _), count in starts[0].iterations.items()} | starts[0].iterations
    busy = fmean(each.foreign_busy for each in starts)
    return replace(starts[0], rounds=pairs, iterations=iterations, foreign_busy=busy)


def median_round(start: Measurement) -> Round:
    """Return the medians of a start, with the same names for its A/A test whichever checkout started first."""
    seconds = {key: median(each.seconds[key] for each in start.rounds) for key in start.rounds[0].seconds}
    for case, name in [key for key in seconds if key.name.endswith(AGAIN)]:
        seconds[Key(case, FIRST + AGAIN)] = seconds.pop(Key(case, name))
        seconds[Key(case, FIRST)] = seconds[Key(case, name.removesuffix(AGAIN))]
    return Round(seconds, start.core_factor)


def mean_round(one: Round, other: Round) -> Round:
    """Return the mean of two rounds."""
    seconds = {key: fmean((one.seconds[key], other.seconds[key])) for key in one.seconds}
    return Round(seconds, fmean((one.core_factor, other.core_factor)))


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
    starts = []
    num_starts = 2 * options.starts
    for number in range(num_starts):
        jobs = jobs_of(options.trees, __file__)[:: -1 if number % 2 else 1]
        starts.append(measure_jobs(jobs, f"start {number + 1} of {num_starts}", options.settings))
    measurement = join_starts(starts)
    yield [Comparison(case, THIS, (OTHER,), TARGET) for case in CASES], measurement


if __name__ == "__main__":
    run_claim(
        "the operations that most programs wait for are not slower than in the other checkout",
        parts,
        CHECKOUT,
        option("--starts", type=int, default=9, metavar="N", help="starts of all ranks in each order (default 9)"),
    )
