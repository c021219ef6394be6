"""Helpers for the ranks of claims: operands and expected results of operations, checks, and drivers of libraries."""

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

# Library names of `libraries.job`: the name in `hocket bench`, and the module that calls the library. "memory" uses
# ranks of hocket, but no library.
TARGETS = {
    "hocket": ("mix", "hocket"),
    "memory": ("shm", "hocket"),
    "gloo": ("torch:gloo", "torch"),
    "hocket_torch": ("torch:hocket", "torch"),
}


@dataclass(frozen=True)
class Operands:
    """The arrays of one operation on a rank.

    Args:
        x: the input.
        out: the result.
        expected: function of `first` that returns the expected result if all elements of x are rank + first.
    """

    x: np.ndarray
    out: np.ndarray
    expected: Callable[[int], np.ndarray | float]


def make_operands(op: str, nbytes: int, rank: int, size: int) -> Operands:
    """Return the operands of a rank; the larger array has `nbytes` bytes, as in nccl-tests.

    For all_gather, the larger array is the result.
    """
    whole, part = nbytes // 4, nbytes // 4 // size

    def of_all(first: int) -> np.ndarray:
        return np.arange(first, first + size, dtype=np.float32)

    if op in ("all_reduce", "broadcast"):
        x = zeros(whole)
        return Operands(x, x, lambda first: of_all(first).sum() if op == "all_reduce" else first)
    if op == "send_recv":  # a message there and one back
        return Operands(zeros(whole), zeros(whole), lambda first: first if rank else first + 1)
    if op == "reduce_scatter":
        return Operands(zeros(part * size), zeros(part), lambda first: of_all(first).sum())
    x = zeros(part if op == "all_gather" else part * size)
    return Operands(x, zeros(part * size), lambda first: of_all(first).repeat(part))


def arguments(op: str, x: Any, out: Any) -> tuple[Any, ...]:
    """Return the array and root arguments of an operation, for hocket and for drivers."""
    return {"all_reduce": (x,), "broadcast": (x, 0)}.get(op, (out, x))


def zeros(count: int) -> np.ndarray:
    """Return float32 zeros, which stay finite when reduced in place repeatedly; all pages are allocated."""
    x = np.empty(count, np.float32)
    x.fill(0)
    return x


def check_loop(name: str, run: Loop, operands: Operands, rank: int) -> Loop:
    """Check the result of a loop twice, and return the loop.

    The arrays are zeros afterwards: other values would overflow after many reductions in place.
    """
    for first in (1, 5):
        operands.out.fill(0)
        operands.x.fill(rank + first)
        run(1)
        check(name, operands.out, operands.expected(first))
    operands.x.fill(0)
    operands.out.fill(0)
    return run


def check(name: str, found: np.ndarray, expected: Any) -> None:
    """Raise WrongResult if a result differs from the expected array, or its elements from one number."""
    compare(found, np.broadcast_to(expected, found.shape), name)


def serve_all(comm: Any, contenders: list[Contender], facts: object = None, **barrier: str) -> None:
    """Serve the contenders that the ranks of a communicator have set up, then finalize the communicator.

    Args:
        comm: communicator of `hocket.init`.
        contenders: contenders, with the same names on all ranks.
        facts: values for the script that JSON can represent.
        barrier: arguments of `Communicator.barrier` before each sample.
    """
    serve(contenders, comm.rank, lambda: comm.barrier(**barrier), actions={"facts": lambda _: {"facts": facts}})
    comm.finalize()


@contextmanager
def driver_of(library: str) -> Iterator[Driver]:
    """Open a library of `libraries.job` on this rank; the environment selects the MPI (MPI4PY_LIBMPI)."""
    name, through = TARGETS.get(library, (library, "mpi4py"))
    with opened([Target(name, "", through)]) as drivers:
        yield drivers[name]
