"""One rank of `dispatch.py`: operations through one of hocket's lanes, and by the lane's library alone, in one process.

dispatch_rank.py mpi|gloo
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from dispatch import CASES, MESSAGES, OURS, REDUCTIONS, THEIRS, case_name

import hocket as hk
from hocket.measure import Contender, pin, serve

Call = Callable[[], object]


def mpi_forms(comm: hk.Communicator, x: np.ndarray) -> dict[str, Call]:
    """The non-blocking forms, as hocket's lane has to use them: a wait for it must be able to end early."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD.Dup()
    peer = 1 - comm.rank
    buffer = [x, MPI.FLOAT]  # the same memory: where an array lies, and on which pages, changes what it costs

    def reduce() -> None:
        world.Iallreduce(MPI.IN_PLACE, buffer).Wait()

    def send() -> None:
        world.Isend(buffer, peer).Wait()

    def receive() -> None:
        world.Irecv(buffer, peer).Wait()

    return {REDUCTIONS: reduce, MESSAGES: there_and_back(comm.rank, send, receive)}


def gloo_forms(comm: hk.Communicator, x: np.ndarray) -> dict[str, Call]:
    """torch.distributed's own calls."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    peer = 1 - comm.rank
    tensor = torch.from_numpy(x)
    both = there_and_back(comm.rank, lambda: dist.send(tensor, peer), lambda: dist.recv(tensor, peer))
    return {REDUCTIONS: lambda: dist.all_reduce(tensor), MESSAGES: both}


def hocket_forms(comm: hk.Communicator, x: np.ndarray, lane: str) -> dict[str, Call]:
    peer = 1 - comm.rank

    def send() -> None:
        comm.send(x, peer, backend=lane)

    def receive() -> None:
        comm.recv(x, peer, backend=lane)

    return {
        REDUCTIONS: lambda: comm.all_reduce(x, backend=lane),
        MESSAGES: there_and_back(comm.rank, send, receive),
    }


def there_and_back(rank: int, send: Call, receive: Call) -> Call:
    first, second = (send, receive) if rank == 0 else (receive, send)

    def run() -> None:
        first()
        second()

    return run


def check(kind: str, call: Call, x: np.ndarray, rank: int) -> None:
    x.fill(rank + 1)
    call()
    expected = 3 if kind == REDUCTIONS else 1
    assert (x == expected).all(), f"{kind}: {x[0]} instead of {expected}"
    x.fill(0)


def main() -> None:
    (lane,) = sys.argv[1:]
    alone = {"mpi": mpi_forms, "gloo": gloo_forms}[lane]
    comm = hk.init(backends=["shm", lane], progress="caller")
    pin(comm.rank)
    contenders = []
    for kind, nbytes in CASES:
        x = np.zeros(nbytes // 4, np.float32)
        for name, forms in ((OURS[lane], hocket_forms(comm, x, lane)), (THEIRS[lane], alone(comm, x))):
            check(kind, forms[kind], x, comm.rank)
            contenders.append(Contender.of_call(case_name(lane, kind, nbytes), name, forms[kind]))
    serve(contenders, comm.rank, lambda: comm.barrier(backend="shm"))
    comm.finalize()


if __name__ == "__main__":
    main()
