"""Six operations between two processes of this machine, from Python: hocket against gloo, Open MPI, MPICH, Intel MPI.

Every library has its own job. All jobs run at the same time; in every round they are measured in random order while the
others sleep. Sizes are those of a rank's larger array; send_recv is a round trip.

The wheel of Intel MPI contains a library with the same file name as MPICH's, so it needs its own environment:
python3.11 -m venv .venv-impi && .venv-impi/bin/pip install impi-rt. Without it, the script omits Intel MPI and
prints a message.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import geometric_mean
from typing import Any

import numpy as np
from claim import Options, PartResults, measure_jobs, option, run_claim
from libraries import find_intel_mpi, job
from ranks import Operands, arguments, check_loop, driver_of, make_operands

from hocket.bench.drivers.base import Call, Driver
from hocket.comm.policy import format_nbytes
from hocket.measure import Comparison, Contender, Measurement, Row, judge, judge_values, pin, serve
from hocket.measure.loops import Loop, looped, there_and_back

KIB, MIB = 1 << 10, 1 << 20
SIZES = (16, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
OURS = "hocket"
LEAST_MEAN, LEAST_CELL = 1.5, 0.95
MOST_PERSISTENT_S = 0.2e-6
MOST_TIMES_MEMORY = 2.0
PERSISTENT = "hocket prepare(...)()"
REDUCING = ("all_reduce", "reduce_scatter")
# The names in torch.distributed, and in MPI.
FORMS = {
    "all_reduce": ("all_reduce", "Allreduce(IN_PLACE, [x, FLOAT])"),
    "all_gather": ("all_gather_single", "Allgather([x, FLOAT], [y, FLOAT])"),
    "reduce_scatter": ("reduce_scatter_single", "Reduce_scatter_block([x, FLOAT], [y, FLOAT])"),
    "broadcast": ("broadcast", "Bcast([x, FLOAT])"),
    "all_to_all": ("all_to_all_single", "Alltoall([x, FLOAT], [y, FLOAT])"),
    "send_recv": ("send, recv", "Send, Recv"),
}
OPERATIONS = tuple(FORMS)


def forms_of(library: str, driver: Driver, op: str, operands: Operands) -> Iterator[tuple[str, Loop, Operands]]:
    """Yield the forms in which a library can be called: the name, the loop and the operands of each."""
    x, out = operands.x, operands.out
    if library == "memory":  # no library: copies of all ranks at the same time, as a bound of the memory
        if op == "all_reduce":
            yield "np.copyto(y, x)", looped(partial(np.copyto, np.ones_like(x), x)), operands
    elif library == "hocket":
        yield OURS, loop_of(driver.bind, op, x, out, driver.rank), operands
        if op != "send_recv":
            yield PERSISTENT, looped(driver.prepare(op, *arguments(op, x, out))), operands
    elif library == "gloo":
        yield f"gloo {FORMS[op][0]}", loop_of(driver.bind, op, x, out, driver.rank, "sum"), operands
    else:
        from mpi4py.MPI import FLOAT

        loop = loop_of(driver.bind, op, [x, FLOAT], [out, FLOAT], driver.rank, "sum")
        yield f"{library} {FORMS[op][1]}", loop, operands
        if op == "all_reduce":
            out_of_place = replace(operands, out=np.zeros_like(x))
            call = driver.bind("buffer", f"{op} out-of-place", [out_of_place.out, FLOAT], [x, FLOAT], "sum")
            yield f"{library} Allreduce([x, FLOAT], [y, FLOAT])", looped(call), out_of_place


def loop_of(bind: Callable[..., Call], op: str, x: Any, out: Any, rank: int, *reduction: str) -> Loop:
    """Return a loop of an operation bound by a driver; `reduction` is passed only if the operation reduces."""
    if op == "send_recv":
        return there_and_back(rank, bind("buffer", "send", x, 1 - rank), bind("buffer", "recv", out, 1 - rank))
    return looped(bind("buffer", op, *arguments(op, x, out), *(reduction if op in REDUCING else ())))


def serve_rank(library: str, operations: str, *sizes: str) -> None:
    """Run one rank of one library: set up its operations, check each one, and serve them."""
    with driver_of(library) as driver:
        pin(driver.rank)
        contenders = []
        for op, nbytes in product(operations.split(","), map(int, sizes)):
            operands = make_operands(op, nbytes, driver.rank, driver.size)
            for name, run, form_operands in forms_of(library, driver, op, operands):
                if library != "memory":
                    check_loop(f"{name}, {op}", run, form_operands, driver.rank)
                contenders.append(Contender(f"{op} {format_nbytes(nbytes)}", name, run))
        serve(contenders, driver.rank, driver.barrier)


def cell_row(measurement: Measurement, case: str) -> Row:
    """Return the row of one cell; it holds unless its whole interval is below 0.95."""
    rivals = tuple(name for name in measurement.names(case) if not name.startswith((OURS, "np.")))
    row = judge(measurement, Comparison(case, OURS, rivals, LEAST_CELL))
    if row.holds is not None and row.interval is not None:
        row = replace(row, holds=row.interval[1] >= LEAST_CELL)
    return row


def mean_row(cells: list[Row]) -> Row:
    """Return the row of the geometric mean over all cells."""
    columns = ([getattr(row, each) for row in cells] for each in ("ours", "theirs", "ratio"))
    ours, theirs, gain = map(geometric_mean, columns)
    holds = None if any(row.unjudged for row in cells) else gain >= LEAST_MEAN
    case = f"geometric mean of {len(cells)} cells"
    return Row(case, "the best of each cell", ours, theirs, "us", gain, None, LEAST_MEAN, holds)


def persistent_row(measurement: Measurement) -> Row:
    """Return the row of the persistent all_reduce of 16 B, with the limit of 0.2 us."""
    case = "all_reduce 16 B"
    row = judge(measurement, Comparison(case, PERSISTENT, (OURS,), label=f"{case}, persistent"))
    most_us = 1e6 * MOST_PERSISTENT_S
    return replace(row, target=row.theirs / most_us, holds=row.ours <= most_us)  # relative to the ordinary form


def memory_row(measurement: Measurement) -> Row:
    """Return the row of all_reduce of 64 MiB against the time that the memory needs to move its bytes.

    Each of two ranks reads its half of both arrays and writes it, then reads and writes the other half: 2.5 times the
    array. A copy moves 2 times the array. So the all_reduce needs at least 1.25 times the time of simultaneous copies.
    """
    case, target = "all_reduce 64 MiB", 1 / MOST_TIMES_MEMORY
    copies = [1.25 * seconds for seconds in measurement.times(case, "np.copyto(y, x)")]
    label = f"{case} against a copy, times 1.25"
    row = judge_values(label, "np.copyto(y, x)", measurement.times(case, OURS), copies)
    return replace(row, target=target, holds=row.ratio >= target)


def parts(options: Options) -> PartResults:
    libraries = ["hocket", "gloo", "openmpi", "mpich", "memory"]
    if find_intel_mpi() is None:
        print("Intel MPI is omitted: .venv-impi is missing (see the docstring of this script)", file=sys.stderr)
    else:
        libraries.append("intelmpi")
    cells: list[Row] = []
    for op in options.operations:  # one after the other: the arrays of all operations together would not fit
        jobs = [job(each, __file__, [op, *SIZES], 2) for each in libraries]
        measurement = measure_jobs(jobs, op, options.settings)
        of_op = [cell_row(measurement, f"{op} {format_nbytes(nbytes)}") for nbytes in SIZES]
        cells += of_op
        rest = [persistent_row(measurement), memory_row(measurement)] if op == "all_reduce" else []
        yield [*of_op, *rest], measurement
    yield ([mean_row(cells)],)


if __name__ == "__main__":
    run_claim(
        "six operations on float32 from Python, two ranks, against the best of the other libraries in each cell",
        parts,
        option("--operations", nargs="+", choices=OPERATIONS, default=list(OPERATIONS), metavar="OP"),
    )
