"""Tables made by hand."""

from __future__ import annotations

from hocket.comm.policy import dtype_class
from hocket.tune import Machine, Row, Table

MACHINE = Machine("a processor", 2, 1, {"shm": "shared memory", "mpi": "MPICH 5", "gloo": "gloo of torch"})


def row(
    op: str,
    backend: str,
    nbytes: int,
    seconds: float,
    *,
    dtype: str = "float32",
    num_ranks: int = 2,
    busy: bool = False,
    noise: float = 0.0,
    algorithm: str = "",
) -> Row:
    """Make a row whose interval reaches `noise` times the median to both sides."""
    low, high = seconds * (1 - noise), seconds * (1 + noise)
    return Row(op, dtype_class(op, dtype), num_ranks, nbytes, backend, busy, seconds, low, high, algorithm)


def table(*rows: Row) -> Table:
    return Table(MACHINE, rows)
