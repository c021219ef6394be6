"""Two ranks beside other programs that compute: hocket against gloo and Open MPI.

The script starts the busy processes itself, each in its own session, like programs of other users: the kernel divides
processors between sessions (autogroup of sched(7)). The two ranks of a job share a session, as those of ``hocket run``
and mpirun do, and are not bound to processors. Each case has two rows: the median of its times represents a typical
step, the mean represents a whole run.

A row holds if the ratio is at least 1 and the lower end of its interval at least 0.85. It falls short if the ratio is
below 1 and the upper end below 1.05. Otherwise it is not judged. The interval of a ratio of means is computed by
bootstrapping whole rounds (Efron, Tibshirani: An Introduction to the Bootstrap, 1993, section 13.3).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, median

import numpy as np
from claim import Options, PartResults, option, run_claim
from libraries import job
from ranks import check_loop, make_operands

from hocket.bench.launchers import ENVIRONMENT
from hocket.measure import Contender, Coordinator, Measurement, Row, measure, progress, serve
from hocket.measure.comparison import MAX_FOREIGN_BUSY
from hocket.measure.jobs import Job, Process
from hocket.measure.loops import Call, in_turn, looped
from hocket.measure.statistics import Ratio, mean_ratio, ratio

SMALL, LARGE, STEP, DDP = "16 bytes", "16 MiB", "0.5 ms of compute, then 200 KB", "DDP step"
NBYTES = {SMALL: 16, STEP: 200_000, LARGE: 16 << 20}
WIDTH = 288  # rows of square matrices; their product takes about half a millisecond
NUM_BUSY = (0, 2, 4, 8, 16)
LIBRARIES = dict.fromkeys((SMALL, STEP, LARGE), ("gloo", "Open MPI")) | {DDP: ("gloo",)}
MIN_ROUNDS, QUICK_ROUNDS = 60, 15
TIME_LIMIT_S = 1800.0  # for each number of busy processes: with 16 of them, a round takes up to half a minute
SAMPLE_S = 0.05  # long enough to use up the scheduler credit of a rank that waited for its sample
TARGET, LEAST_LOW, MOST_HIGH = 1.0, 0.85, 1.05

Average = Callable[[Sequence[float]], float]
RatioOf = Callable[[Sequence[float], Sequence[float]], Ratio]
STATISTICS: dict[str, tuple[Average, RatioOf]] = {"median": (median, ratio), "mean": (fmean, mean_ratio)}
Reducer = Callable[[np.ndarray], Call]  # returns the call that sums an array over both ranks, in place


def contenders(name: str, rank: int, reducer: Reducer) -> Iterator[Contender]:
    """Yield the all_reduce of a library in each case, checked once."""
    for case, nbytes in NBYTES.items():
        operands = make_operands("all_reduce", nbytes, rank, 2)
        reduce = reducer(operands.x)
        run = check_loop(f"{name}, {case}", looped(reduce), operands, rank)
        if case == STEP:  # compute before each operation
            a, b, c = (np.zeros((WIDTH, WIDTH), np.float32) for _ in range(3))
            run = in_turn(partial(np.matmul, a, b, out=c), reduce)
        yield Contender(case, name, run)


def serve_torch_rank() -> None:
    """Serve hocket and gloo: two process groups of the same processes."""
    import torch
    import torch.distributed as dist
    from ddp_step import digit_batch, digit_network, gradients_agree, step_loop
    from torch.nn.parallel import DistributedDataParallel

    import hocket.torch

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    offered: list[Contender] = []
    for backend in ("hocket", "gloo"):
        group = dist.new_group(backend=backend)

        def reducer(x: np.ndarray, backend: str = backend, group: dist.ProcessGroup = group) -> Call:
            if backend == "gloo":
                return partial(dist.all_reduce, torch.from_numpy(x), group=group)
            return partial(hocket.torch.communicator(group).all_reduce, x)

        offered += contenders(backend, rank, reducer)
        torch.manual_seed(0)
        model = DistributedDataParallel(digit_network(), process_group=group)
        run = step_loop(model, digit_batch(), sync=True)
        run(3)
        if not gradients_agree(model):
            raise AssertionError(f"{backend}: the ranks have different gradients")
        offered.append(Contender(DDP, backend, run))
    serve(offered, rank, dist.barrier)
    offered.clear()
    del model, run
    dist.destroy_process_group()


def serve_mpi_rank() -> None:
    """Serve Open MPI, called through mpi4py."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    assert "Open MPI" in MPI.Get_library_version(), f"not Open MPI: {MPI.Get_library_version()}"
    offered = list(contenders("Open MPI", world.rank, lambda x: partial(world.Allreduce, MPI.IN_PLACE, x)))
    serve(offered, world.rank, world.Barrier)


def serve_rank(library: str) -> None:
    {"torch": serve_torch_rank, "openmpi": serve_mpi_rank}[library]()


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run `count` processes that compute and never wait."""
    command = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def verdict(found: Ratio, measurement: Measurement) -> bool | None:
    """Return whether a row holds; None if it cannot be judged."""
    if len(measurement.rounds) < MIN_ROUNDS or measurement.foreign_busy > MAX_FOREIGN_BUSY:
        return None
    if found.median >= TARGET and found.low >= LEAST_LOW:
        return True
    return False if found.median < TARGET and found.high < MOST_HIGH else None


def rows_of(measurement: Measurement, num_busy: int) -> Iterator[Row]:
    """Yield two rows per case, by median and by mean, each against the rival that is fastest by this statistic."""

    for case, rivals in LIBRARIES.items():
        ours = measurement.times(case, "hocket")
        of_rivals = {name: measurement.times(case, name) for name in rivals}
        for statistic, (average, ratio_of) in STATISTICS.items():
            rival = min(rivals, key=lambda name: average(of_rivals[name]))
            found = ratio_of(ours, of_rivals[rival])
            times = 1e6 * average(ours), 1e6 * average(of_rivals[rival])
            label = f"{num_busy} busy, {case}, {statistic}"
            interval, holds = (found.low, found.high), verdict(found, measurement)
            yield Row(label, rival, *times, "us", found.median, interval, TARGET, holds)


def parts(options: Options) -> PartResults:
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else MIN_ROUNDS)
    settings = replace(options.settings, min_rounds=rounds, min_sample_s=SAMPLE_S, core_rounds=0, again=False)
    if options.time_limit is None and not options.quick:
        settings = replace(settings, time_limit_s=TIME_LIMIT_S)
    command = (sys.executable, "-m", "hocket.cli", "run", "-n", "2", __file__, "--rank", "torch")
    jobs = [Job("torch", 2, (Process(command, ENVIRONMENT),)), job("openmpi", __file__, [], 2)]
    with Coordinator(jobs, run_timeout_s=600.0) as coordinator:
        for count in options.busy:
            with busy_processes(count), progress(f"{count} busy processes") as on_round:
                measurement = measure(coordinator, settings, on_round=on_round)
            yield rows_of(measurement, count), measurement


if __name__ == "__main__":
    run_claim(
        "beside other programs two ranks are no slower over hocket than over gloo or Open MPI, by median and by mean",
        parts,
        option("--busy", type=int, nargs="+", metavar="N", default=NUM_BUSY, help="busy processes (0 2 4 8 16)"),
    )
