"""What everybody waits for, in this checkout and in another one: is any of it slower than it was?

Both checkouts need their .venv (`make install`). Their ranks are processes of their own, whose samples take turns.

Where a process has its code and data changes what 16 bytes take by some percent, in all of its samples. So ranks are
started again and again, and a row's ratio is the median over starts, each by the median of its rounds.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from hocket.measure import (
    Comparison,
    Contender,
    Coordinator,
    Job,
    Measurement,
    Round,
    direct_job,
    finish,
    judge,
    measure,
    null_rows,
    pin,
    progress,
    report,
    run_script,
    script_parser,
    serve,
    settings_of,
)

THIS, OTHER = "this checkout", "the other one"
ALL_REDUCE, TO_AND_FRO = "all_reduce of 16 bytes", "16 bytes there and back"
DDP_STEP, PIPELINE_STEP = "DDP step", "pipeline step"
CASES = (ALL_REDUCE, TO_AND_FRO, DDP_STEP, PIPELINE_STEP)
TARGET = 0.97  # what two runs of the same code differ by
WIDTH, NUM_MICRO_BATCHES = 256, 4


def serve_rank(name: str) -> None:
    """One rank of a checkout."""
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

    def all_reduce(iterations: int) -> None:
        for _ in range(iterations):
            comm.all_reduce(x, "max")

    def there_and_back(iterations: int) -> None:
        for _ in range(iterations):
            if comm.rank == 0:
                comm.send(x, peer)
                comm.recv(y, peer)
            else:
                comm.recv(y, peer)
                comm.send(x, peer)

    def network() -> torch.nn.Sequential:
        torch.manual_seed(0)
        layers = [each for _ in range(4) for each in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())]
        return torch.nn.Sequential(*layers)

    dist.init_process_group("hocket")
    replica = torch.nn.parallel.DistributedDataParallel(network())
    inputs = torch.ones(8, WIDTH)

    def ddp_step(iterations: int) -> None:
        for _ in range(iterations):
            replica.zero_grad()
            replica(inputs).sum().backward()

    graph = graph_of(network())
    split = graph.split([0, len(graph.layers) // 2, len(graph.layers)])
    table = pipeline.build("1f1b", 2, NUM_MICRO_BATCHES)
    executor = PipelineExecutor(table, split, comm, lambda output, _: output.sum())
    batch = [MicroBatch({split.batch_inputs[0]: part}, None) for part in inputs.split(8 // NUM_MICRO_BATCHES)]

    def pipeline_step(iterations: int) -> None:
        for _ in range(iterations):
            executor.step(batch)

    runs = dict(zip(CASES, (all_reduce, there_and_back, ddp_step, pipeline_step), strict=True))
    serve([Contender(case, name, run) for case, run in runs.items()], comm.rank, comm.barrier)
    executor.close()
    dist.destroy_process_group()
    comm.finalize()


def of_starts(starts: Sequence[Measurement]) -> Measurement:
    """Return one measurement in which each start is a round."""
    rounds = [
        Round(
            {key: median(each.seconds[key] for each in start.rounds) for key in start.rounds[0].seconds},
            start.core_factor,
        )
        for start in starts
    ]
    return replace(starts[0], rounds=tuple(rounds), foreign_busy=fmean(each.foreign_busy for each in starts))


def find_trees(parser: ArgumentParser, other: Path) -> dict[str, Path]:
    """Return both checkouts by name; one without an environment ends the script."""
    trees = {THIS: Path(__file__).resolve().parents[1], OTHER: other.resolve()}
    for tree in trees.values():
        if not (tree / ".venv" / "bin" / "python").exists():
            parser.error(f"{tree} has no .venv: run `make install` there first")
    return trees


def jobs_of(trees: Mapping[str, Path], script: str) -> list[Job]:
    """Return a job of two ranks for each checkout, ``SCRIPT --rank NAME`` under its own Python."""
    return [
        direct_job(name, (str(tree / ".venv/bin/python"), script, "--rank", name), 2, {"OMP_NUM_THREADS": "1"})
        for name, tree in trees.items()
    ]


def main() -> int:
    parser = script_parser(__doc__.split("\n\n")[0])
    parser.add_argument("other", type=Path, metavar="CHECKOUT", help="folder of the other checkout")
    parser.add_argument("--starts", type=int, default=9, metavar="N", help="of all ranks (default 9)")
    options = parser.parse_args()
    trees = find_trees(parser, options.other)
    starts = []
    for number in range(options.starts):
        with (
            Coordinator(jobs_of(trees, __file__)) as coordinator,
            progress(f"start {number + 1} of {options.starts}") as on_round,
        ):
            starts.append(measure(coordinator, settings_of(options), on_round=on_round))
    measured = of_starts(starts)
    rows = [judge(measured, Comparison(case, THIS, (OTHER,), TARGET)) for case in CASES]
    claim = "what everybody waits for takes no longer than in the other checkout"
    return finish(report(claim, [*rows, *null_rows(measured)], [measured]), options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        serve_rank(sys.argv[2])
    else:
        run_script(main)
