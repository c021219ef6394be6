"""all_reduce between processes of this machine, from Python: hocket against gloo, Open MPI and MPICH.

Of hocket on arrays of any kind, and on arrays in the memory that the ranks share (`comm.empty`); the latter also
against what the memory allows: the additions and writes alone, on memory of every rank's own. Where nobody writes to
shared arrays in between, each rank's slice stays in its own caches; in rows "written before" every rank fills its array
before each all_reduce, and the time of that counts, of hocket as of its rivals.

Every library has its own job of the same number of ranks, all of them live at once, and in every round each form of
each library has its turn in random order while the others sleep. One time is the slowest rank's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any

from claim import Found, Options, measured, option, run_claim
from libraries import job
from ranks import Arrays, arrays, checked, driver_of, zeros

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
    """The number of bytes that a text names: "16", "16B", "64KiB", "1MiB"."""
    nbytes = read_size(text)
    if nbytes <= 0 or nbytes % 4:
        raise argparse.ArgumentTypeError(f"{text}: a size must be a positive multiple of 4 bytes (float32)")
    return nbytes


Form = tuple[str, Loop, Arrays]
"""A way to reduce: its name, the loop that is timed, and its arrays."""


def forms_of(library: str, driver: Driver, given: Arrays) -> Iterator[Form]:
    """The ways to call a library from Python; which one is the fastest is for the measurement to say."""
    forms = {"hocket": hocket_forms, "gloo": torch_forms, "hocket_torch": torch_forms}.get(library, mpi_forms)
    return forms(library, driver, given)


def hocket_forms(_: str, driver: Driver, given: Arrays) -> Iterator[Form]:
    """hocket on NumPy arrays."""
    shared = driver.shared(given.x.size, "float32")
    for name, x in ((OURS, given.x), (SYMMETRIC, shared)):
        yield name, looped(driver.bind("buffer", "all_reduce", x)), replace(given, x=x, out=x)


def torch_forms(library: str, driver: Driver, given: Arrays) -> Iterator[Form]:
    """torch.distributed, on tensors that share memory with NumPy arrays; hocket on these tensors also directly."""
    import torch
    import torch.distributed as dist

    backend = library.removesuffix("_torch")
    group: Any = dist.group.WORLD
    tensor = torch.from_numpy(given.x)
    yield f"{backend} dist.all_reduce(tensor)", looped(driver.bind("buffer", "all_reduce", given.x, "sum")), given
    run = begun(partial(group.allreduce, [tensor]), dist.Work.wait)
    yield f"{backend} group.allreduce([tensor]).wait()", run, given
    if backend == "hocket":
        from hocket.torch import communicator

        yield "hocket comm.all_reduce(tensor)", looped(partial(communicator().all_reduce, tensor)), given


def mpi_forms(library: str, driver: Driver, given: Arrays) -> Iterator[Form]:
    """An MPI through mpi4py."""
    from mpi4py import MPI

    x, y = given.x, zeros(given.x.size)
    memory = [MPI.memory.frombuffer(x), x.size, MPI.FLOAT]
    for words, buffer in (("[x, FLOAT]", [x, MPI.FLOAT]), ("x", x), ("[memory, n, FLOAT]", memory)):
        run = looped(driver.bind("buffer", "all_reduce", buffer, "sum"))
        yield f"{library} Allreduce(IN_PLACE, {words})", run, given
    apart = driver.bind("buffer", "all_reduce out-of-place", [y, MPI.FLOAT], [x, MPI.FLOAT], "sum")
    yield f"{library} Allreduce([x, FLOAT], [y, FLOAT])", looped(apart), replace(given, out=y)
    try:
        request = MPI.COMM_WORLD.Allreduce_init(MPI.IN_PLACE, [x, MPI.FLOAT])
    except (NotImplementedError, MPI.Exception) as error:
        print(f"{library} has no persistent Allreduce: {error}", file=sys.stderr)
    else:
        yield f"{library} Allreduce_init, Start, Wait", in_turn(request.Start, request.Wait), given


def what_memory_allows(count: int) -> Loop:
    """The least that an all_reduce between two ranks has to do, with none of what they have to say to each other.

    Every rank adds half of two arrays and writes the result into both. All of it is memory of its own, which no other
    processor touches.
    """
    x, y = zeros(count), zeros(count)
    half = count // 2 * 4

    def run(iterations: int) -> None:
        first, second = x.ctypes.data, y.ctypes.data
        for _ in repeat(None, iterations):
            _native.reduce_memory("float32", "sum", first, [first, second], half, second)

    return run


def serve_rank(library: str, pinned: str, *sizes: str) -> None:
    """One rank of one library: sets its forms of all_reduce up, checks each, and serves them."""
    with driver_of(library) as driver:
        if pinned == "pinned":  # after the library's start: it must not take a bound rank for one that shares its core
            pin(driver.rank)
        contenders = []
        for nbytes in map(int, sizes):
            case, given = format_nbytes(nbytes), arrays("all_reduce", nbytes, driver.rank, driver.size)
            for name, run, of_form in forms_of(library, driver, given):
                contenders.append(Contender(case, name, checked(name, run, of_form, driver.rank)))
                if nbytes >= LEAST_WRITTEN:
                    # The array is written before each time, as by programs: its lines are in its rank's own caches,
                    # from where the others have to fetch them.
                    written = in_turn(partial(of_form.x.fill, 0), partial(run, 1))
                    contenders.append(Contender(f"{case}, written", name, written))
            if library == "hocket" and driver.size == 2:
                contenders.append(Contender(case, BOUND, what_memory_allows(nbytes // 4)))
        serve(contenders, driver.rank, driver.barrier)


def forms(measurement: Measurement, case: str, libraries: tuple[str, ...]) -> tuple[str, ...]:
    """The names of all forms of some libraries; a form's name starts with its library's."""
    return tuple(name for name in measurement.names(case) if name.split()[0] in libraries)


def comparisons(measurement: Measurement, nbytes: int) -> Iterator[Comparison]:
    """With a target for NumPy arrays, without for torch tensors."""
    case, every = format_nbytes(nbytes), ("gloo", *MPIS)
    for libraries, target in TARGETS.get(nbytes, ((every, None),)):
        yield Comparison(case, OURS, forms(measurement, case, libraries), target, label=f"{case}, NumPy")
    label, target = f"{case}, symmetric memory", SYMMETRIC_TARGETS.get(nbytes)
    yield Comparison(case, SYMMETRIC, forms(measurement, case, every), target, label=label)
    if target is not None:
        again = f"{case}, written"
        yield Comparison(again, SYMMETRIC, forms(measurement, again, every), label=f"{label}, written before")
        yield Comparison(case, SYMMETRIC, (BOUND,), 1 / MOST_OVER_BOUND, label=label)
    for way, words in (("comm", "torch tensor"), ("dist", "torch.distributed")):
        ours, gloo = f"hocket {way}.all_reduce(tensor)", forms(measurement, case, ("gloo",))
        yield Comparison(case, ours, gloo, label=f"{case}, {words}")


def parts(options: Options) -> Found:
    jobs = [job(library, __file__, ["pinned", *options.sizes], 2) for library in LIBRARIES]
    measurement = measured(jobs, "all_reduce, 2 ranks", options.settings)
    yield [each for nbytes in options.sizes for each in comparisons(measurement, nbytes)], measurement
    for num_ranks in () if options.no_oversubscribed else OVERSUBSCRIBED_RANKS:  # 8 bytes, more ranks than cores
        jobs = [job(library, __file__, ["free", 8], num_ranks) for library in ("hocket", "openmpi")]
        measurement = measured(jobs, f"all_reduce, {num_ranks} ranks", options.settings)
        label = f"8 B, {num_ranks} ranks on 2 cores (oversubscribed)"
        rivals = forms(measurement, "8 B", ("openmpi",))
        yield [Comparison("8 B", OURS, rivals, OVERSUBSCRIBED_TARGET, label=label)], measurement


if __name__ == "__main__":
    run_claim(
        "all_reduce of float32 from Python, against each library's fastest form; ours is comm.all_reduce(x), in place",
        parts,
        option("--sizes", type=size, nargs="+", default=list(TARGETS), metavar="SIZE", help="such as 16 64KiB"),
        option("--no-oversubscribed", action="store_true", help="leave out the rows with 4 and 8 ranks"),
    )
