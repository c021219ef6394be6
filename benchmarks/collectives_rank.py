"""One rank of one library in collectives_cpu.py: sets its operations up, checks each, and serves them.

    collectives_rank.py LIBRARY OPERATION[,OPERATION...] NBYTES...

NBYTES is the size of the larger array of a rank, as in nccl-tests: of all_gather the gathered one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product, repeat
from typing import Any

import numpy as np
from libraries import size_name

from hocket.measure import Contender, pin, serve

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
PERSISTENT = "hocket prepare(...)()"

Loop = Callable[[int], object]


@dataclass(frozen=True)
class Arrays:
    """Of one operation: what goes in, what comes out, and what has to."""

    x: np.ndarray
    out: np.ndarray
    expected: Callable[[int, int], np.ndarray]  # of (rank, size), if x of rank r is filled with r + 1


def arrays(op: str, nbytes: int, size: int) -> Arrays:
    whole, part = nbytes // 4, nbytes // 4 // size

    def zeros(count: int) -> np.ndarray:
        x = np.empty(count, np.float32)
        x.fill(0)  # every page is there, and stays finite however often it is reduced
        return x

    ranks = np.arange(1, size + 1, dtype=np.float32)
    match op:
        case "all_reduce":
            x = zeros(whole)
            return Arrays(x, x, lambda rank, size: np.full(whole, ranks.sum()))
        case "broadcast":
            x = zeros(whole)
            return Arrays(x, x, lambda rank, size: np.full(whole, 1))
        case "all_gather":
            return Arrays(zeros(part), zeros(part * size), lambda rank, size: ranks.repeat(part))
        case "reduce_scatter":
            return Arrays(zeros(part * size), zeros(part), lambda rank, size: np.full(part, ranks.sum()))
        case "all_to_all":
            return Arrays(zeros(part * size), zeros(part * size), lambda rank, size: ranks.repeat(part))
        case _:  # there and back again
            return Arrays(zeros(whole), zeros(whole), lambda rank, size: np.full(whole, 1 if rank else 2))


def looped(call: Callable[..., object], *arguments: Any) -> Loop:
    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            call(*arguments)

    return run


class Library:
    """A library on this rank: its forms of every operation."""

    rank: int
    size: int

    def forms(self, op: str, given: Arrays) -> Iterator[tuple[str, Loop]]:
        raise NotImplementedError

    def barrier(self) -> object:
        raise NotImplementedError

    def finalize(self) -> None:
        pass


class Hocket(Library):
    def __init__(self) -> None:
        import hocket as hk

        self.comm = hk.init()
        self.rank, self.size, self.barrier = self.comm.rank, self.comm.size, self.comm.barrier

    def forms(self, op: str, given: Arrays) -> Iterator[tuple[str, Loop]]:
        comm, x, out = self.comm, given.x, given.out
        if op == "send_recv":
            send, recv, is_first = comm.send, comm.recv, comm.rank == 0

            def there_and_back(iterations: int) -> None:
                for _ in repeat(None, iterations):
                    if is_first:
                        send(x, 1)
                        recv(out, 1)
                    else:
                        recv(out, 0)
                        send(x, 0)

            yield "hocket", there_and_back
            return
        arguments: tuple[Any, ...] = {"all_reduce": (x,), "broadcast": (x, 0)}.get(op, (out, x))
        yield "hocket", looped(getattr(comm, op), *arguments)
        yield PERSISTENT, looped(comm.prepare(op, *arguments))

    def finalize(self) -> None:
        self.comm.finalize()


class Gloo(Library):
    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.dist, self.torch = dist, torch
        self.rank, self.size, self.barrier = dist.get_rank(), dist.get_world_size(), dist.barrier

    def forms(self, op: str, given: Arrays) -> Iterator[tuple[str, Loop]]:
        dist = self.dist
        x, out = self.torch.from_numpy(given.x), self.torch.from_numpy(given.out)
        match op:
            case "all_reduce":
                yield "gloo all_reduce", looped(dist.all_reduce, x)
            case "broadcast":
                yield "gloo broadcast", looped(dist.broadcast, x, 0)
            case "all_gather":
                yield "gloo all_gather_single", looped(dist.all_gather_single, out, x)
            case "reduce_scatter":
                yield "gloo reduce_scatter_single", looped(dist.reduce_scatter_single, out, x)
            case "all_to_all":
                yield "gloo all_to_all_single", looped(dist.all_to_all_single, out, x)
            case _:

                def there_and_back(iterations: int) -> None:
                    for _ in repeat(None, iterations):
                        if self.rank == 0:
                            dist.send(x, 1)
                            dist.recv(out, 1)
                        else:
                            dist.recv(out, 0)
                            dist.send(x, 0)

                yield "gloo send, recv", there_and_back

    def finalize(self) -> None:
        self.dist.destroy_process_group()


class Mpi(Library):
    """Through mpi4py; which library, the environment says (MPI4PY_LIBMPI)."""

    def __init__(self, name: str) -> None:
        from mpi4py import MPI

        self.MPI, self.name, self.comm = MPI, name, MPI.COMM_WORLD
        self.rank, self.size, self.barrier = self.comm.rank, self.comm.size, self.comm.Barrier

    def forms(self, op: str, given: Arrays) -> Iterator[tuple[str, Loop]]:
        MPI, comm, name = self.MPI, self.comm, self.name
        x, out = [given.x, MPI.FLOAT], [given.out, MPI.FLOAT]
        match op:
            case "all_reduce":
                yield f"{name} Allreduce(IN_PLACE, [x, FLOAT])", looped(comm.Allreduce, MPI.IN_PLACE, x)
                apart = [np.zeros_like(given.x), MPI.FLOAT]

                def out_of_place(iterations: int) -> None:
                    for _ in repeat(None, iterations):
                        comm.Allreduce(x, apart)
                    given.out[...] = apart[0]  # one copy a sample, for the check

                yield f"{name} Allreduce([x, FLOAT], [y, FLOAT])", out_of_place
            case "broadcast":
                yield f"{name} Bcast([x, FLOAT])", looped(comm.Bcast, x, 0)
            case "all_gather":
                yield f"{name} Allgather([x, FLOAT], [y, FLOAT])", looped(comm.Allgather, x, out)
            case "reduce_scatter":
                yield f"{name} Reduce_scatter_block([x, FLOAT], [y, FLOAT])", looped(comm.Reduce_scatter_block, x, out)
            case "all_to_all":
                yield f"{name} Alltoall([x, FLOAT], [y, FLOAT])", looped(comm.Alltoall, x, out)
            case _:

                def there_and_back(iterations: int) -> None:
                    send, receive = comm.Send, comm.Recv
                    for _ in repeat(None, iterations):
                        if self.rank == 0:
                            send(x, 1)
                            receive(out, 1)
                        else:
                            receive(out, 0)
                            send(x, 0)

                yield f"{name} Send, Recv", there_and_back


class Memory(Library):
    """No library: what the memory gives if every rank copies at the same time."""

    def __init__(self) -> None:
        import hocket as hk

        self.comm = hk.init(backends="shm")
        self.rank, self.size, self.barrier = self.comm.rank, self.comm.size, self.comm.barrier

    def forms(self, op: str, given: Arrays) -> Iterator[tuple[str, Loop]]:
        if op == "all_reduce":
            yield "np.copyto(y, x)", looped(np.copyto, np.ones_like(given.x), given.x)

    def finalize(self) -> None:
        self.comm.finalize()


def check(library: Library, op: str, name: str, run: Loop, given: Arrays) -> None:
    if isinstance(library, Memory):
        return
    given.out.fill(0)
    given.x.fill(library.rank + 1)
    run(1)
    expected = given.expected(library.rank, library.size)
    if not (given.out == expected).all():
        raise AssertionError(f"{name}, {op}: {given.out[:4]} instead of {expected[:4]} in {given.out.size} float32")
    given.x.fill(0)
    given.out.fill(0)


def main() -> None:
    name, ops, *sizes = sys.argv[1:]
    library = {"hocket": Hocket, "gloo": Gloo, "memory": Memory}.get(name, lambda: Mpi(name))()
    pin(library.rank)
    contenders = []
    for op, nbytes in product(ops.split(","), map(int, sizes)):
        given = arrays(op, nbytes, library.size)
        for form, run in library.forms(op, given):
            check(library, op, form, run, given)
            contenders.append(Contender(f"{op} {size_name(nbytes)}", form, run))
    serve(contenders, library.rank, library.barrier)
    library.finalize()


if __name__ == "__main__":
    main()
