"""What the ranks of claims share: the arrays of an operation and what has to come out, and libraries by driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from hocket.bench.drivers.base import Driver
from hocket.bench.families.collectives import compare
from hocket.bench.rank import opened
from hocket.bench.targets import Target
from hocket.measure import Contender, serve
from hocket.measure.loops import Loop

# Of `libraries.job`: its name in `hocket bench`, and what calls it. "memory" is hocket's ranks, which use no library.
TARGETS = {
    "hocket": ("mix", "hocket"),
    "memory": ("shm", "hocket"),
    "gloo": ("torch:gloo", "torch"),
    "hocket_torch": ("torch:hocket", "torch"),
}


@dataclass(frozen=True)
class Arrays:
    """Of one operation on a rank: what goes in, what comes out, and what has to if x of rank r is all r + first."""

    x: np.ndarray
    out: np.ndarray
    expected: Callable[[int], np.ndarray | float]


def arrays(op: str, nbytes: int, rank: int, size: int) -> Arrays:
    """Those of a rank, the larger one of so many bytes, as in nccl-tests: of all_gather the gathered one."""
    whole, part = nbytes // 4, nbytes // 4 // size

    def of_all(first: int) -> np.ndarray:
        return np.arange(first, first + size, dtype=np.float32)

    if op in ("all_reduce", "broadcast"):
        x = zeros(whole)
        return Arrays(x, x, lambda first: of_all(first).sum() if op == "all_reduce" else first)
    if op == "send_recv":  # there and back again
        return Arrays(zeros(whole), zeros(whole), lambda first: first if rank else first + 1)
    if op == "reduce_scatter":
        return Arrays(zeros(part * size), zeros(part), lambda first: of_all(first).sum())
    x = zeros(part if op == "all_gather" else part * size)
    return Arrays(x, zeros(part * size), lambda first: of_all(first).repeat(part))


def arguments(op: str, x: Any, out: Any) -> tuple[Any, ...]:
    """Those of hocket's operation, and of a driver's."""
    return {"all_reduce": (x,), "broadcast": (x, 0)}.get(op, (out, x))


def zeros(count: int) -> np.ndarray:
    """Float32 that stay finite however often they are reduced in place; written, so that every page is there."""
    x = np.empty(count, np.float32)
    x.fill(0)
    return x


def checked(words: str, run: Loop, given: Arrays, rank: int) -> Loop:
    """The loop, after two looks at its result; later repetitions are on zeros, all else would overflow in place."""
    for first in (1, 5):
        given.out.fill(0)
        given.x.fill(rank + first)
        run(1)
        check(words, given.out, given.expected(first))
    given.x.fill(0)
    given.out.fill(0)
    return run


def check(words: str, found: np.ndarray, expected: Any) -> None:
    """Raise WrongResult where a result is not what is expected, in an array, or as one number that is everywhere."""
    compare(found, np.broadcast_to(expected, found.shape), words)


def serve_all(comm: Any, contenders: list[Contender], facts: object = None, **barrier: str) -> None:
    """Serve what a communicator's ranks have set up, and leave.

    Args:
        comm: of `hocket.init`.
        contenders: the same on all ranks.
        facts: for the script, as JSON has them.
        barrier: how the ranks meet before a sample, as `Communicator.barrier` takes it.
    """
    serve(contenders, comm.rank, lambda: comm.barrier(**barrier), actions={"facts": lambda _: {"facts": facts}})
    comm.finalize()


@contextmanager
def driver_of(library: str) -> Iterator[Driver]:
    """A library of `libraries.job` on this rank, called directly; which MPI, the environment says (MPI4PY_LIBMPI)."""
    name, through = TARGETS.get(library, (library, "mpi4py"))
    with opened([Target(name, "", through)]) as drivers:
        yield drivers[name]
