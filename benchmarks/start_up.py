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
from pathlib import Path

from lab import Lab
from two_trees import OTHER, THIS, find_trees, jobs_of

from hocket.measure import (
    Comparison,
    Contender,
    Coordinator,
    Measurement,
    Round,
    finish,
    foreign_busy,
    judge,
    measure,
    null_rows,
    progress,
    report,
    run_script,
    script_parser,
    serve,
    settings_of,
    usage,
)

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
        def run(iterations: int) -> None:
            for _ in range(iterations):
                hk.init(backends=backends, timeout=60).finalize()

        return Contender("+".join(backends), name, run)

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
            order = list(trees.items())[:: 1 if number % 2 else -1]
            seconds = {}
            for name, tree in order:
                argv = [str(tree / ".venv/bin/python"), __file__, "--init"]
                processes = [
                    subprocess.Popen(
                        command,
                        env={**os.environ, **variables, "OMP_NUM_THREADS": "1"},
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                    for command, variables in lab.rank_commands(argv, num_ranks // 2)
                ]
                outputs = [process.communicate(timeout=_DEADLINE_S)[0] for process in processes]
                told = [json.loads(text) for text in outputs if text]
                seconds[case, name] = sorted(told[0])[NUM_INITS // 2]
            rounds.append(Round(seconds, core_factor))
            print(f"round {number + 1} of {num_rounds}: {seconds}", file=sys.stderr)
    busy = foreign_busy(before, usage([os.getpid()]))
    return Measurement(tuple(rounds), {(case, name): 1 for name in trees}, num_ranks, busy, full_cores=0.0)


def main() -> int:
    parser = script_parser(__doc__.split("\n\n")[0])
    parser.add_argument("other", type=Path, metavar="CHECKOUT", help="folder of the other checkout")
    parser.add_argument("--hosts", type=int, default=0, metavar="N", help="also N ranks on two hosts (needs root)")
    parser.add_argument("--starts", type=int, default=9, metavar="N", help="of all ranks on two hosts (default 9)")
    options = parser.parse_args()
    trees = find_trees(parser, options.other)
    with Coordinator(jobs_of(trees, __file__)) as coordinator, progress("rounds") as on_round:
        # A start waits for the kernel and for processes that begin, so it needs no two processors to itself.
        settings = replace(settings_of(options), core_rounds=0, full_core_factor=0.0)
        measured = measure(coordinator, settings, on_round=on_round)
    rows = []
    for backends in CASES.values():
        case = "+".join(backends)
        seconds = sorted(each.seconds[case, OTHER] for each in measured.rounds)
        target = seconds[len(seconds) // 2] / (seconds[len(seconds) // 2] + MOST_SLOWER_S)
        rows.append(judge(measured, Comparison(case, THIS, (OTHER,), target)))
    measurements = [measured]
    if options.hosts:
        measurements.append(on_two_hosts(trees, options.hosts, options.starts, measured.core_factor))
        case = HOSTS.format(options.hosts)
        rows.append(judge(measurements[-1], Comparison(case, THIS, (OTHER,), HOSTS_TARGET)))
    claim = "an init takes at most 3 ms more on one host than in the other checkout, and 1.1 times as long on two"
    return finish(report(claim, [*rows, *null_rows(measured)], measurements), options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        serve_rank(sys.argv[2])
    elif sys.argv[1:2] == ["--init"]:
        time_inits()
    else:
        run_script(main)
