"""How long `hk.init` takes, in this checkout and in another: two ranks of one host, and many on the laboratory's two.

Both checkouts need their .venv (`make install`). What is timed is an init and the finalize after it, of ranks that all
come at once, as the slowest of them has it; libraries are loaded before. The two checkouts take turns.
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

from claim import Found, Options, measured, option, run_claim
from lab import Lab
from two_trees import CHECKOUT, OTHER, THIS, jobs_of

from hocket.measure import Comparison, Contender, Measurement, Round, foreign_busy, serve, usage

CASES = {"shared memory": ["shm"], "shared memory and gloo": ["shm", "gloo"], "shared memory and MPI": ["shm", "mpi"]}
MOST_SLOWER_S = 0.003
HOSTS = "{} ranks on two hosts, gloo"
HOSTS_TARGET = 1 / 1.1
NUM_INITS = 3
_DEADLINE_S = 400.0


def serve_rank(name: str) -> None:
    """One of two ranks of a checkout."""
    import torch.distributed as dist

    import hocket as hk

    dist.init_process_group("hocket")  # a communicator besides those that are timed, for the barrier

    def starting(backends: list[str]) -> Contender:
        return Contender.of_call("+".join(backends), name, lambda: hk.init(backends=backends, timeout=60).finalize())

    serve([starting(backends) for backends in CASES.values()], dist.get_rank(), dist.barrier)
    dist.destroy_process_group()


def time_inits() -> None:
    """One of many ranks; rank 0 prints the seconds of each init, as the slowest rank has it."""
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
    """Start all ranks of either checkout in turn; a round is the median of its inits.

    Args:
        trees: by name.
        num_ranks: on both hosts together.
        num_rounds: of both checkouts.
        core_factor: as it was measured before; no rank is idle here that could measure it.
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
                told = [json.loads(text) for text in outputs if text]
                seconds[case, name] = median(told[0])
            rounds.append(Round(seconds, core_factor))
            print(f"round {number + 1} of {num_rounds}: {seconds}", file=sys.stderr)
    busy = foreign_busy(before, usage([os.getpid()]))
    return Measurement(tuple(rounds), {(case, name): 1 for name in trees}, num_ranks, busy, full_cores=0.0)


def parts(options: Options) -> Found:
    # A start waits for the kernel and for processes that begin, so it needs no two processors to itself.
    settings = replace(options.settings, core_rounds=0, full_core_factor=0.0)
    measurement = measured(jobs_of(options.trees, __file__), "rounds", settings)
    rows = []
    for backends in CASES.values():
        case = "+".join(backends)
        middle_s = median(measurement.times(case, OTHER))
        rows.append(Comparison(case, THIS, (OTHER,), middle_s / (middle_s + MOST_SLOWER_S)))
    yield rows, measurement
    if options.hosts:
        on_hosts = on_two_hosts(options.trees, options.hosts, options.starts, measurement.core_factor)
        yield [Comparison(HOSTS.format(options.hosts), THIS, (OTHER,), HOSTS_TARGET)], on_hosts


if __name__ == "__main__" and sys.argv[1:2] == ["--init"]:
    time_inits()
elif __name__ == "__main__":
    run_claim(
        "an init takes at most 3 ms more on one host than in the other checkout, and 1.1 times as long on two",
        parts,
        CHECKOUT,
        option("--hosts", type=int, default=0, metavar="N", help="also N ranks on two hosts (needs root)"),
        option("--starts", type=int, default=9, metavar="N", help="of all ranks on two hosts (default 9)"),
        needs_lab=lambda options: options.hosts > 0,
    )
