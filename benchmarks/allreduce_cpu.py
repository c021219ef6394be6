"""all_reduce between processes of this machine, from Python: hocket against gloo, Open MPI and MPICH.

hocket is measured on ordinary arrays and on arrays in memory that the ranks share (`comm.empty`). The shared arrays are
also compared with a bound of the memory: the additions and writes alone, on private memory of each rank. If no rank
writes to the shared arrays between operations, each rank's slice stays in its own caches. In rows "written before",
every rank therefore fills its array before each all_reduce; this time counts for hocket and for its rivals.

Every library has its own job with the same number of ranks. All jobs run at the same time. In every round, each form of
each library is measured in random order while the others sleep. The time is that of the slowest rank.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any

from claim import Options, PartResults, measure_jobs, option, run_claim
from libraries import job
from ranks import Operands, check_loop, driver_of, make_operands, zeros

from hocket import _native
from hocket.bench.drivers.base import Driver
from hocket.cli._sizes import read_size
from hocket.comm.policy import format_nbytes
from hocket.measure import Comparison, Contender, Measurement, pin, serve
from hocket.measure.loops import Loop, begun, in_turn, looped

OURS = "hocket comm.all_reduce(array)"
LIBRARIES = ("hocket", "hocket_torch", "gloo", "openmpi", "mpich")
MPIS = ("openmpi", "mpich")
KIB, MIB = 1 << 10, 1 << 20

# size in bytes -> ((rivals, target), ...)
TARGETS = {
    16: ((MPIS, 1.7), (("gloo",), 100.0)),
    64 * KIB: ((("gloo", *MPIS), 1.3),),
    MIB: ((("gloo", *MPIS), 1.3),),
    16 * MIB: ((("gloo", *MPIS), 1.2),),
    64 * MIB: ((("gloo", *MPIS), 1.2),),
}
SYMMETRIC = "hocket comm.all_reduce(comm.empty(...))"
SYMMETRIC_TARGETS = {MIB: 4.0, 16 * MIB: 3.0}
LEAST_WRITTEN = MIB
BOUND = "bound: half of two arrays added into both"
MOST_OVER_BOUND = 1.5
OVERSUBSCRIBED_RANKS = (4, 8)
OVERSUBSCRIBED_TARGET = 1.0


def size(text: str) -> int:
    """Parse a size in bytes, such as "16", "16B", "64KiB" or "1MiB"."""
    nbytes = read_size(text)
    if nbytes <= 0 or nbytes % 4:
        raise argparse.ArgumentTypeError(f"{text}: a size must be a positive multiple of 4 bytes (float32)")
    return nbytes


Form = tuple[str, Loop, Operands]
"""A form of the operation: its name, the timed loop, and its operands."""


def forms_of(library: str, driver: Driver, operands: Operands) -> Iterator[Form]:
    """Yield the forms in which Python can call a library; the measurement finds the fastest one."""
    forms = {"hocket": hocket_forms, "gloo": torch_forms, "hocket_torch": torch_forms}.get(library, mpi_forms)
    return forms(library, driver, operands)


def hocket_forms(_: str, driver: Driver, operands: Operands) -> Iterator[Form]:
    """Yield the forms of hocket on NumPy arrays."""
    shared = driver.shared(operands.x.size, "float32")
    for name, x in ((OURS, operands.x), (SYMMETRIC, shared)):
        yield name, looped(driver.bind("buffer", "all_reduce", x)), replace(operands, x=x, out=x)


def torch_forms(library: str, driver: Driver, operands: Operands) -> Iterator[Form]:
    """Yield the forms of torch.distributed on tensors in the memory of NumPy arrays, and of hocket on these tensors."""
    import torch
    import torch.distributed as dist

    backend = library.removesuffix("_torch")
    group: Any = dist.group.WORLD
    tensor = torch.from_numpy(operands.x)
    yield f"{backend} dist.all_reduce(tensor)", looped(driver.bind("buffer", "all_reduce", operands.x, "sum")), operands
    run = begun(partial(group.allreduce, [tensor]), dist.Work.wait)
    yield f"{backend} group.allreduce([tensor]).wait()", run, operands
    if backend == "hocket":
        from hocket.torch import communicator

        yield "hocket comm.all_reduce(tensor)", looped(partial(communicator().all_reduce, tensor)), operands


def mpi_forms(library: str, driver: Driver, operands: Operands) -> Iterator[Form]:
    """Yield the forms of an MPI, called through mpi4py."""
    from mpi4py import MPI

    x, y = operands.x, zeros(operands.x.size)
    memory = [MPI.memory.frombuffer(x), x.size, MPI.FLOAT]
    for words, buffer in (("[x, FLOAT]", [x, MPI.FLOAT]), ("x", x), ("[memory, n, FLOAT]", memory)):
        run = looped(driver.bind("buffer", "all_reduce", buffer, "sum"))
        yield f"{library} Allreduce(IN_PLACE, {words})", run, operands
    out_of_place = driver.bind("buffer", "all_reduce out-of-place", [y, MPI.FLOAT], [x, MPI.FLOAT], "sum")
    yield f"{library} Allreduce([x, FLOAT], [y, FLOAT])", looped(out_of_place), replace(operands, out=y)
    try:
        request = MPI.COMM_WORLD.Allreduce_init(MPI.IN_PLACE, [x, MPI.FLOAT])
    except (NotImplementedError, MPI.Exception) as error:
        print(f"{library} has no persistent Allreduce: {error}", file=sys.stderr)
    else:
        yield f"{library} Allreduce_init, Start, Wait", in_turn(request.Start, request.Wait), operands


def memory_bound_loop(count: int) -> Loop:
    """Return a loop with the minimum work of an all_reduce between two ranks, without any synchronisation.

    Each rank adds halves of two arrays and writes the result into both. The arrays are private memory of the rank: no
    other processor accesses them.
    """
    x, y = zeros(count), zeros(count)
    half = count // 2 * 4

    def run(iterations: int) -> None:
        first, second = x.ctypes.data, y.ctypes.data
        for _ in repeat(None, iterations):
            _native.reduce_memory("float32", "sum", first, [first, second], half, second)

    return run


def serve_rank(library: str, pinned: str, *sizes: str) -> None:
    """Run one rank of one library: set up its forms of all_reduce, check each one, and serve them."""
    with driver_of(library) as driver:
        if pinned == "pinned":  # after the start, or the library would assume that a bound rank shares its core
            pin(driver.rank)
        contenders = []
        for nbytes in map(int, sizes):
            case, operands = format_nbytes(nbytes), make_operands("all_reduce", nbytes, driver.rank, driver.size)
            for name, run, form_operands in forms_of(library, driver, operands):
                contenders.append(Contender(case, name, check_loop(name, run, form_operands, driver.rank)))
                if nbytes >= LEAST_WRITTEN:
                    # As in programs, the array is written before each operation. Its cache lines are then in the caches
                    # of its rank, and the other ranks must fetch them from there.
                    written = in_turn(partial(form_operands.x.fill, 0), partial(run, 1))
                    contenders.append(Contender(f"{case}, written", name, written))
            if library == "hocket" and driver.size == 2:
                contenders.append(Contender(case, BOUND, memory_bound_loop(nbytes // 4)))
        serve(contenders, driver.rank, driver.barrier)


def forms(measurement: Measurement, case: str, libraries: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of all forms of some libraries; the name of a form starts with that of its library."""
    return tuple(name for name in measurement.names(case) if name.split()[0] in libraries)


def comparisons(measurement: Measurement, nbytes: int) -> Iterator[Comparison]:
    """Yield the comparisons of one size: with targets for NumPy arrays, without for torch tensors."""
    case, every = format_nbytes(nbytes), ("gloo", *MPIS)
    for libraries, target in TARGETS.get(nbytes, ((every, None),)):
        yield Comparison(case, OURS, forms(measurement, case, libraries), target, label=f"{case}, NumPy")
    label, target = f"{case}, symmetric memory", SYMMETRIC_TARGETS.get(nbytes)
    yield Comparison(case, SYMMETRIC, forms(measurement, case, every), target, label=label)
    if target is not None:
        written = f"{case}, written"
        yield Comparison(written, SYMMETRIC, forms(measurement, written, every), label=f"{label}, written before")
        yield Comparison(case, SYMMETRIC, (BOUND,), 1 / MOST_OVER_BOUND, label=label)
    for way, words in (("comm", "torch tensor"), ("dist", "torch.distributed")):
        ours, gloo = f"hocket {way}.all_reduce(tensor)", forms(measurement, case, ("gloo",))
        yield Comparison(case, ours, gloo, label=f"{case}, {words}")


def parts(options: Options) -> PartResults:
    jobs = [job(library, __file__, ["pinned", *options.sizes], 2) for library in LIBRARIES]
    measurement = measure_jobs(jobs, "all_reduce, 2 ranks", options.settings)
    yield [each for nbytes in options.sizes for each in comparisons(measurement, nbytes)], measurement
    for num_ranks in () if options.no_oversubscribed else OVERSUBSCRIBED_RANKS:  # more ranks than cores
        jobs = [job(library, __file__, ["free", 8], num_ranks) for library in ("hocket", "openmpi")]
        measurement = measure_jobs(jobs, f"all_reduce, {num_ranks} ranks", options.settings)
        label = f"8 B, {num_ranks} ranks on 2 cores (oversubscribed)"
        rivals = forms(measurement, "8 B", ("openmpi",))
        yield [Comparison("8 B", OURS, rivals, OVERSUBSCRIBED_TARGET, label=label)], measurement


if __name__ == "__main__":
    run_claim(
        "all_reduce of float32 from Python, against each library's fastest form; ours is comm.all_reduce(x), in place",
        parts,
        option("--sizes", type=size, nargs="+", default=list(TARGETS), metavar="SIZE", help="for example 16 64KiB"),
        option("--no-oversubscribed", action="store_true", help="omit the rows with 4 and 8 ranks"),
    )
