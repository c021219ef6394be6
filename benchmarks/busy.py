"""Two ranks beside other programs that compute: hocket against gloo and Open MPI.

The script starts the busy processes itself, each in its own session like programs of other users: the kernel divides
processors between sessions (autogroup of sched(7)). The two ranks of a job share a session, as those of
``hocket run`` and mpirun do, and are bound to no processor. Each case has two rows: the median of its times is a
typical step, the mean is what a whole run takes.

A row holds where the ratio is at least 1 and its interval's lower end at least 0.85; it falls short where the ratio is
below 1 and the upper end below 1.05; otherwise nothing can be said. The interval of a ratio of means is a bootstrap's
(Efron, Tibshirani: An Introduction to the Bootstrap, 1993, section 13.3), of whole rounds.
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
from claim import Found, Options, option, run_claim
from libraries import job
from ranks import arrays, checked

from hocket.bench.launchers import ENVIRONMENT
from hocket.measure import Contender, Coordinator, Measurement, Row, measure, progress, serve
from hocket.measure.jobs import Job, Process
from hocket.measure.judge import MAX_FOREIGN_BUSY
from hocket.measure.loops import Call, in_turn, looped
from hocket.measure.statistics import Ratio, mean_ratio, ratio

SMALL, LARGE, STEP, DDP = "16 bytes", "16 MiB", "0.5 ms of compute, then 200 KB", "DDP step"
NBYTES = {SMALL: 16, STEP: 200_000, LARGE: 16 << 20}
WIDTH = 288  # of square matrices whose product takes about half a millisecond
NUM_BUSY = (0, 2, 4, 8, 16)
LIBRARIES = dict.fromkeys((SMALL, STEP, LARGE), ("gloo", "Open MPI")) | {DDP: ("gloo",)}
MIN_ROUNDS, QUICK_ROUNDS = 60, 15
TIME_LIMIT_S = 1800.0  # for each number of busy processes: a round beside 16 takes up to half a minute
SAMPLE_S = 0.05  # long enough to spend the credit that the scheduler gives to a rank that waited for its sample
TARGET, LEAST_LOW, MOST_HIGH = 1.0, 0.85, 1.05

Centre = Callable[[Sequence[float]], float]
Compared = Callable[[Sequence[float], Sequence[float]], Ratio]
BY: dict[str, tuple[Centre, Compared]] = {"median": (median, ratio), "mean": (fmean, mean_ratio)}
Reducer = Callable[[np.ndarray], Call]  # gives the call that sums an array over both ranks, in place


def contenders(name: str, rank: int, reducer: Reducer) -> Iterator[Contender]:
    """A library's all_reduce in each case, checked once."""
    for case, nbytes in NBYTES.items():
        given = arrays("all_reduce", nbytes, rank, 2)
        reduce = reducer(given.x)
        run = checked(f"{name}, {case}", looped(reduce), given, rank)
        if case == STEP:  # computes before each operation
            a, b, c = (np.zeros((WIDTH, WIDTH), np.float32) for _ in range(3))
            run = in_turn(partial(np.matmul, a, b, out=c), reduce)
        yield Contender(case, name, run)


def torch_ranks() -> None:
    """hocket and gloo: two process groups of the same processes."""
    import torch
    import torch.distributed as dist
    from ddp_step import digit_network, digits, gradients_agree, steps
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
        run = steps(model, digits(), sync=True)
        run(3)
        if not gradients_agree(model):
            raise AssertionError(f"{backend}: the ranks have different gradients")
        offered.append(Contender(DDP, backend, run))
    serve(offered, rank, dist.barrier)
    offered.clear()
    del model, run
    dist.destroy_process_group()


def mpi_ranks() -> None:
    """Open MPI, by mpi4py."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    assert "Open MPI" in MPI.Get_library_version(), f"not Open MPI: {MPI.Get_library_version()}"
    found = list(contenders("Open MPI", world.rank, lambda x: partial(world.Allreduce, MPI.IN_PLACE, x)))
    serve(found, world.rank, world.Barrier)


def serve_rank(library: str) -> None:
    {"torch": torch_ranks, "openmpi": mpi_ranks}[library]()


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run so many processes that compute and never wait."""
    command = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def verdict(seen: Ratio, measurement: Measurement) -> bool | None:
    """Whether a row holds; None where nothing can be said."""
    if len(measurement.rounds) < MIN_ROUNDS or measurement.foreign_busy > MAX_FOREIGN_BUSY:
        return None
    if seen.median >= TARGET and seen.low >= LEAST_LOW:
        return True
    return False if seen.median < TARGET and seen.high < MOST_HIGH else None


def rows_of(measurement: Measurement, num_busy: int) -> Iterator[Row]:
    """Two rows a case, each against the rival that is the fastest by what the row is about."""

    for case, rivals in LIBRARIES.items():
        ours = measurement.times(case, "hocket")
        of_rivals = {name: measurement.times(case, name) for name in rivals}
        for by, (centre, compared) in BY.items():
            rival = min(rivals, key=lambda name: centre(of_rivals[name]))
            seen = compared(ours, of_rivals[rival])
            times = 1e6 * centre(ours), 1e6 * centre(of_rivals[rival])
            words = f"{num_busy} busy, {case}, {by}"
            interval, holds = (seen.low, seen.high), verdict(seen, measurement)
            yield Row(words, rival, *times, "us", seen.median, interval, TARGET, holds)


def parts(options: Options) -> Found:
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
        option("--busy", type=int, nargs="+", metavar="N", default=NUM_BUSY, help="processes (default: 0 2 4 8 16)"),
    )
