"""Time of `hk.init` in this and another checkout: two ranks of one host, or many on the two hosts of the laboratory.

Both checkouts need their .venv (`make install`). The time is that of the slowest rank if all ranks
start at the same time, with libraries loaded before. On one host it includes the following finalize. The two checkouts
alternate.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from claim import Options, PartResults, measure_jobs, option, run_claim
from lab import Lab
from two_trees import CHECKOUT, OTHER, THIS, jobs_of

from hocket.errors import LaunchError
from hocket.measure import Comparison, Contender, Measurement, Round, foreign_busy, serve, usage

CASES = {"shared memory": ["shm"], "shared memory and gloo": ["shm", "gloo"], "shared memory and MPI": ["shm", "mpi"]}
MOST_SLOWER_S = 0.003
HOSTS = "{} ranks on two hosts, gloo"
HOSTS_TARGET = 1 / 1.1
NUM_INITS = 3
_DEADLINE_S = 400.0


def serve_rank(name: str) -> None:
    """Run one of two ranks of a checkout."""
    import torch.distributed as dist

    import hocket as hk

    dist.init_process_group("hocket")  # a communicator for the barrier, besides the timed ones

    def contender_of(backends: list[str]) -> Contender:
        return Contender.of_call("+".join(backends), name, lambda: hk.init(backends=backends, timeout=60).finalize())

    serve([contender_of(backends) for backends in CASES.values()], dist.get_rank(), dist.barrier)
    dist.destroy_process_group()


def time_inits() -> None:
    """Run one of many ranks; rank 0 prints the seconds of each init on the slowest rank."""
    import numpy as np

    import hocket as hk

    seconds = np.zeros(NUM_INITS)
    comm = hk.init(backends=["shm", "gloo"], timeout=_DEADLINE_S)
    for number in range(NUM_INITS):
        comm.barrier()
        comm.finalize()
        begin_s = time.monotonic()
        comm = hk.init(backends=["shm", "gloo"], timeout=_DEADLINE_S)
        seconds[number] = time.monotonic() - begin_s
    comm.all_reduce(seconds, "max")
    if comm.rank == 0:
        print(json.dumps(list(seconds)), flush=True)
    comm.finalize()


def on_two_hosts(trees: dict[str, Path], num_ranks: int, num_rounds: int, core_factor: float) -> Measurement:
    """Start all ranks of the checkouts alternately; the time of a round is the median of its inits.

    Args:
        trees: folders of the checkouts, by name.
        num_ranks: number of ranks on both hosts together.
        num_rounds: number of rounds of both checkouts.
        core_factor: the core factor measured before; no rank is idle here to measure it.
    """
    before = usage([os.getpid()])
    case = HOSTS.format(num_ranks)
    rounds = []
    with Lab(10.0) as lab:
        for number in range(num_rounds):
            seconds = {}
            for name, tree in list(trees.items())[:: 1 if number % 2 else -1]:
                argv = [str(tree / ".venv/bin/python"), __file__, "--init"]
                piped = partial(subprocess.Popen, stdout=subprocess.PIPE, text=True)
                processes = [
                    piped(command, env={**os.environ, **variables, "OMP_NUM_THREADS": "1"})
                    for command, variables in lab.rank_commands(argv, num_ranks // 2)
                ]
                outputs = [process.communicate(timeout=_DEADLINE_S)[0] for process in processes]
                timings = [json.loads(text) for text in outputs if text]
                if len(timings) != 1 or any(process.returncode for process in processes):
                    raise LaunchError(f"{name}: exit codes {[process.returncode for process in processes]}")
                seconds[case, name] = median(timings[0])
            rounds.append(Round(seconds, core_factor))
            print(f"round {number + 1} of {num_rounds}: {seconds}", file=sys.stderr)
    busy = foreign_busy(before, usage([os.getpid()]))
    return Measurement(tuple(rounds), {(case, name): 1 for name in trees}, num_ranks, busy, full_cores=0.0)


def parts(options: Options) -> PartResults:
    # A start waits for the kernel and for starting processes, so it does not need two full cores.
    settings = replace(options.settings, core_rounds=0, full_core_factor=0.0)
    measurement = measure_jobs(jobs_of(options.trees, __file__), "rounds", settings)
    rows = []
    for backends in CASES.values():
        case = "+".join(backends)
        other_s = median(measurement.times(case, OTHER))
        rows.append(Comparison(case, THIS, (OTHER,), other_s / (other_s + MOST_SLOWER_S)))
    yield rows, measurement
    if options.hosts:
        on_hosts = on_two_hosts(options.trees, options.hosts, options.starts, measurement.core_factor)
        yield [Comparison(HOSTS.format(options.hosts), THIS, (OTHER,), HOSTS_TARGET)], on_hosts


if __name__ == "__main__" and sys.argv[1:2] == ["--init"]:
    time_inits()
elif __name__ == "__main__":
    run_claim(
        "an init takes at most 3 ms longer than in the other checkout on one host, and 1.1 times as long on two hosts",
        parts,
        CHECKOUT,
        option("--hosts", type=int, default=0, metavar="N", help="also measure N ranks on two hosts (needs root)"),
        option("--starts", type=int, default=9, metavar="N", help="starts of all ranks on two hosts (default 9)"),
        needs_lab=lambda options: options.hosts > 0,
    )
