"""The overhead of hocket: operations on its mpi and gloo lanes against those of mpi4py (non-blocking) and
torch.distributed.

Both run alternately in the same process, over the same library and on the same arrays.
"""

from __future__ import annotations

from functools import partial
from statistics import median

import numpy as np
from claim import Options, PartResults, measure_jobs, run_claim
from libraries import job
from ranks import check_loop, driver_of, make_operands, serve_all

import hocket as hk
from hocket.bench.drivers.base import Driver
from hocket.comm.policy import format_nbytes
from hocket.measure import Comparison, Contender, Measurement, pin
from hocket.measure.loops import Loop, begun, looped, there_and_back

KIB, MIB = 1 << 10, 1 << 20
REDUCTIONS, MESSAGES = "all_reduce", "there and back"
CASES = [(REDUCTIONS, 8), (REDUCTIONS, 64 * KIB), (REDUCTIONS, 4 * MIB), (MESSAGES, 8), (MESSAGES, 64 * KIB)]
OURS = {lane: f"hocket backend='{lane}'" for lane in ("mpi", "gloo")}
THEIRS = {"mpi": "mpi4py, non-blocking", "gloo": "torch.distributed over gloo"}
# The ratio theirs / ours. An all_reduce of 8 bytes over MPI has an absolute limit, MOST_MORE_S, instead.
LEAST = {"mpi": 1 / 1.05, "gloo": 1 / 1.1}
MOST_MORE_S = 1e-6


def case_name(lane: str, kind: str, nbytes: int) -> str:
    return f"{lane} {kind} {format_nbytes(nbytes)}"


def through_hocket(comm: hk.Communicator, lane: str, kind: str, x: np.ndarray) -> Loop:
    if kind == REDUCTIONS:
        return looped(partial(comm.all_reduce, x, backend=lane))
    send, receive = (partial(call, x, 1 - comm.rank, backend=lane) for call in (comm.send, comm.recv))
    return there_and_back(comm.rank, send, receive)


def through_mpi(driver: Driver, kind: str, x: np.ndarray) -> Loop:
    """Return a loop of the non-blocking form, which hocket's lane must use too, so that a wait can time out."""
    from mpi4py import MPI

    buffer = [x, MPI.FLOAT]  # the same memory: the address and pages of an array affect the time
    if kind == REDUCTIONS:
        return begun(driver.begin("all_reduce", buffer, "sum"), MPI.Request.Wait)
    send, receive = (driver.bind("buffer", op, buffer, 1 - driver.rank) for op in ("isend", "irecv"))
    return there_and_back(driver.rank, send, receive, MPI.Request.Wait)


def through_gloo(driver: Driver, kind: str, x: np.ndarray) -> Loop:
    """Return a loop of torch.distributed's own calls."""
    if kind == REDUCTIONS:
        return looped(driver.bind("buffer", "all_reduce", x, "sum"))
    send, receive = (driver.bind("buffer", op, x, 1 - driver.rank) for op in ("send", "recv"))
    return there_and_back(driver.rank, send, receive)


def serve_rank(lane: str) -> None:
    """Run one rank: operations through a lane of hocket and directly by the library of the lane, in one process."""
    comm = hk.init(backends=["shm", lane], progress="caller")
    pin(comm.rank)
    through_library = {"mpi": through_mpi, "gloo": through_gloo}[lane]
    contenders = []
    with driver_of(lane) as driver:
        for kind, nbytes in CASES:
            # After a round trip both ranks have the message of rank 0, as after a broadcast.
            operands = make_operands("all_reduce" if kind == REDUCTIONS else "broadcast", nbytes, comm.rank, comm.size)
            loops = through_hocket(comm, lane, kind, operands.x), through_library(driver, kind, operands.x)
            for name, run in zip((OURS[lane], THEIRS[lane]), loops, strict=True):
                check_loop(f"{name}, {kind}", run, operands, comm.rank)
                contenders.append(Contender(case_name(lane, kind, nbytes), name, run))
        serve_all(comm, contenders, backend="shm")


def target_of(measurement: Measurement, lane: str, kind: str, nbytes: int) -> float:
    if (lane, kind, nbytes) != ("mpi", REDUCTIONS, 8):
        return LEAST[lane]
    # At most one microsecond more than mpi4py in this run, as a ratio.
    median_s = median(measurement.times(case_name(lane, kind, nbytes), THEIRS[lane]))
    return median_s / (median_s + MOST_MORE_S)


def parts(options: Options) -> PartResults:
    for lane in OURS:  # one after the other: waiting ranks of another job would disturb the measurement
        measurement = measure_jobs([job(lane, __file__, [], 2)], f"dispatch {lane}", options.settings)
        found = []
        for kind, nbytes in CASES:
            case, target = case_name(lane, kind, nbytes), target_of(measurement, lane, kind, nbytes)
            found.append(Comparison(case, OURS[lane], (THEIRS[lane],), target))
        yield found, measurement


if __name__ == "__main__":
    run_claim(
        "float32 between two ranks through hocket's lanes against the lane's library alone, in the same process", parts
    )
