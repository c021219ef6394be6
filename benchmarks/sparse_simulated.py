"""Simulated times of sparse sums between 4 to 256 virtual ranks, against dense ones and those of TopkA and gTopk.

The algorithms themselves run (hocket.simulate), on real arrays; their messages take the time that a link gives them.
The work of a rank takes no time there, so the time of selecting and writing, measured in this process, is added to the
sparse ones. Dense sums take the time of the fastest all-reduce that is known. The paper of Ok-Topk (arXiv 2201.07598)
reports 3.29 to 12.95 times the throughput of whole training steps, on 16 to 256 GPUs; the ratios here are those of the
sums alone.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median
from typing import Any

import numpy as np

import hocket as hk
from hocket.comm.policy import format_nbytes, format_seconds

LINKS = {"10 Gbit/s, 30 us": hk.sim.Link.of(30, 1.25), "100 Gbit/s, 2 us": hk.sim.Link.of(2, 12.5)}
ALGORITHMS = ("exact", "topk-a", "gtopk")
NUM_RANKS = (4, 16, 64, 256)


def gradient(rank: int, step: int, size: int) -> np.ndarray:
    """Return values with heavy tails."""
    return (np.random.default_rng((rank, step)).standard_normal(size, np.float32) ** 3).astype(np.float32)


def seconds_of(comm: hk.Communicator, algorithm: str, size: int, k: int, num_steps: int) -> float:
    """Return the simulated time of a sum, the median of the steps; of a dense one without an algorithm."""
    state, found = hk.ResidualState(), []
    for step in range(num_steps):
        x = gradient(comm.rank, step, size)
        comm.barrier()
        begin_s = comm.wtime()
        if algorithm:
            comm.sparse_all_reduce(x, k, state=state, algorithm=algorithm, dense="never")
        else:
            comm.all_reduce(x)
        comm.barrier()
        found.append(comm.wtime() - begin_s)
    return median(found)


def local_seconds(size: int, k: int) -> float:
    """Return the time of a rank's own work, measured: the sum of one rank alone."""

    def alone(comm: hk.Communicator) -> float:
        state, found = hk.ResidualState(), []
        for step in range(9):
            x = gradient(0, step, size)
            begin_s = time.perf_counter()
            comm.sparse_all_reduce(x, k, state=state, dense="never")
            found.append(time.perf_counter() - begin_s)
        return median(found)

    seconds: float = hk.simulate(alone, 1, fabric=hk.sim.Link(1e-6, 1e-9)).results[0]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--size", type=int, default=1 << 20, help="elements of the gradient")
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--ranks", type=int, action="append", help="may be repeated; default: 4, 16, 64 and 256")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    k, rows = round(options.density * options.size), []
    local_s = local_seconds(options.size, k)
    if not options.json:
        print(f"{format_nbytes(4 * options.size)}, {options.density:.2%}; a rank's own work: {format_seconds(local_s)} "
              "(measured); all other times are simulated")  # fmt: skip
    for name, link in LINKS.items():
        for num_ranks in options.ranks or NUM_RANKS:
            times: dict[str, float] = {}
            for algorithm in ("", *ALGORITHMS):
                found: Any = hk.simulate(seconds_of, num_ranks, algorithm, options.size, k, 3, fabric=link).results
                times[algorithm or "dense"] = max(found) + (local_s if algorithm else 0.0)
            rows.append({"link": name, "num_ranks": num_ranks, "seconds": times})
            if not options.json:
                ratios = {each: times["dense"] / seconds for each, seconds in times.items()}
                told = ", ".join(f"{each} {format_seconds(times[each])} ({ratios[each]:.2f} x)" for each in times)
                print(f"{name}, {num_ranks} ranks: {told}", flush=True)
    if options.json:
        print(json.dumps({"local_s": local_s, "rows": rows}))


if __name__ == "__main__":
    main()
