"""Sparse sums of 1 % of the elements against the dense sums of all libraries, selection included.

1, 16 and 64 MiB of single precision, between the two hosts of the laboratory at 1 and 10 Gbit/s, and between two ranks
of one host. Each iteration copies a gradient into the array, which all contenders sum in place. hocket chooses between
sparse and dense by itself, in steps before the measurement. The rivals are hocket's dense all_reduce by a table that
the ranks measure first, torch.distributed over gloo, and MPI_Allreduce.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from claim import Options, PartResults, measure_jobs, option, run_claim
from lab import Lab
from libraries import job, lab_job

import hocket as hk
from hocket.comm.policy import format_nbytes
from hocket.measure import Comparison, Contender, pin, serve
from hocket.measure.loops import Loop, in_turn
from hocket.tune.policy import TablePolicy
from hocket.tune.sweep import Sweep, measure_table

MIB = 1 << 20
SIZES = (MIB, 16 * MIB, 64 * MIB)
DENSITY = 0.01
ONE_HOST, SLOW, FAST = "one host", "1 Gbit/s", "10 Gbit/s"
PLACES = (SLOW, FAST, ONE_HOST)
SPARSE, PACKED = "sparse", "sparse, bfloat16"
RIVALS = ("hocket, dense", "torch, gloo", "MPI")
TUNED = Sweep(ops=("all_reduce",), sizes=(4 << 10, 64 << 10, MIB, 4 * MIB, 16 * MIB), busy_sizes=())
NUM_TRIED = 40


def least(place: str, nbytes: int) -> float:
    """Return how many times as fast as the best dense sum a sparse one must be."""
    if place != SLOW:
        return 0.97
    return 4.0 if nbytes == MIB else 8.0


def gradient_of(rank: int, size: int) -> np.ndarray:
    """Return values with heavy tails, as gradients have them."""
    random = np.random.default_rng(rank)
    return (random.standard_normal(size, np.float32) ** 3).astype(np.float32)


def sums(comm: hk.Communicator, x: np.ndarray) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the contenders, each of which sums x."""
    from mpi4py import MPI

    for name, codec in ((SPARSE, hk.ElementCodec()), (PACKED, hk.ElementCodec(values="bfloat16"))):
        yield name, partial(comm.sparse_all_reduce, x, density=DENSITY, state=hk.ResidualState(name), codec=codec)
    yield RIVALS[0], partial(comm.all_reduce, x)
    yield RIVALS[1], partial(dist.all_reduce, torch.from_numpy(x))
    yield RIVALS[2], partial(MPI.COMM_WORLD.Allreduce, MPI.IN_PLACE, [x, MPI.FLOAT])


def refilled(x: np.ndarray, given: np.ndarray, call: Callable[[], object]) -> Loop:
    return in_turn(partial(np.copyto, x, given), call)


def serve_rank(_: str) -> None:
    """Run one rank."""
    torch.set_num_threads(1)
    comm = hk.init(backends=("shm", "gloo", "mpi"), policy=hk.Policy.fixed({}), timeout=300)
    pin(comm.rank)
    comm.policy = TablePolicy(measure_table(comm, TUNED))
    if comm.num_hosts > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # by the name of a host gloo would find its loopback device
    dist.init_process_group("gloo")
    contenders = []
    for nbytes in SIZES:
        x, given = np.zeros(nbytes // 4, np.float32), gradient_of(comm.rank, nbytes // 4)
        for name, call in sums(comm, x):
            loop = refilled(x, given, call)
            loop(NUM_TRIED if name.startswith(SPARSE) else 1)
            contenders.append(Contender(format_nbytes(nbytes), name, loop))
    serve(contenders, comm.rank, comm.barrier)
    dist.destroy_process_group()
    comm.finalize()


def comparisons(place: str) -> Iterator[Comparison]:
    for nbytes in SIZES:
        case = format_nbytes(nbytes)
        label = f"{place}: {case}, sparse against the best dense sum"
        yield Comparison(case, SPARSE, RIVALS, least(place, nbytes), label=label, unit="ms", needs_cores=False)
        label = f"{place}: {case}, sparse with bfloat16 against the best dense sum"
        yield Comparison(case, PACKED, RIVALS, label=label, unit="ms", needs_cores=False)


def parts(options: Options) -> PartResults:
    for place in options.place or PLACES:
        if place == ONE_HOST:
            measurement = measure_jobs([job("hocket", __file__, [], 2)], place, options.settings, start_timeout_s=300.0)
        else:
            with Lab(float(place.split()[0])) as lab:
                ranks = lab_job("hocket", lab, __file__, [], 1)
                measurement = measure_jobs([ranks], place, options.settings, start_timeout_s=300.0)
        yield comparisons(place), measurement


if __name__ == "__main__":
    run_claim(
        "a sum of 1 % of the elements is 8 times as fast as a dense one at 1 Gbit/s, and nowhere slower",
        parts,
        option("--place", action="append", choices=PLACES, help="may be repeated"),
        needs_lab=lambda options: options.place != [ONE_HOST],
        unit="ms",
    )
