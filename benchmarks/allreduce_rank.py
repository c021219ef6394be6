"""One rank of one library in allreduce_cpu.py: sets its forms of all_reduce up, checks each, and serves them.

    allreduce_rank.py LIBRARY PIN NBYTES...

A form is one way to call the library from Python; which one is the fastest is for the measurement to say.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from libraries import size_name

from hocket.measure import Contender, pin, serve

Call = Callable[[], object]
LEAST_WRITTEN = 1 << 20
BOUND = "bound: half of two arrays added into both"


@dataclass(frozen=True)
class Form:
    """A way to reduce: its name, the loop that is timed, the array that goes in and the one that comes out."""

    name: str
    run: Callable[[int], object]
    x: np.ndarray
    out: np.ndarray


@dataclass(frozen=True)
class Library:
    """A library on this rank."""

    rank: int
    size: int
    barrier: Call
    forms: Callable[[int], Iterator[Form]]  # of a number of float32
    finalize: Call = lambda: None


def zeros(count: int) -> np.ndarray:
    """Values that stay finite however often they are reduced in place; written, so that every page is there."""
    x = np.empty(count, np.float32)
    x.fill(0)
    return x


def what_memory_allows(count: int) -> Callable[[int], None]:
    """The least that an all_reduce between two ranks has to do, with none of what they have to say to each other.

    Every rank adds half of two arrays and writes the result into both. All of it is memory of its own, which no other
    processor touches.
    """
    from hocket import _native

    x, y = zeros(count), zeros(count)
    half = count // 2 * 4

    def run(iterations: int) -> None:
        first, second = x.ctypes.data, y.ctypes.data
        for _ in repeat(None, iterations):
            _native.reduce_memory("float32", "sum", first, [first, second], half, second)

    return run


def hocket() -> Library:
    """hocket on NumPy arrays."""
    import hocket as hk

    comm = hk.init()

    def forms(count: int) -> Iterator[Form]:
        all_reduce = comm.all_reduce

        def form(name: str, x: np.ndarray) -> Form:
            def run(iterations: int) -> None:
                for _ in repeat(None, iterations):
                    all_reduce(x)

            return Form(f"hocket {name}", run, x, x)

        yield form("comm.all_reduce(array)", zeros(count))
        yield form("comm.all_reduce(comm.empty(...))", comm.empty(count))

    return Library(comm.rank, comm.size, comm.barrier, forms, comm.finalize)


def gloo() -> Library:
    """gloo through torch.distributed, on tensors that share memory with NumPy arrays."""
    return torch_distributed("gloo")


def hocket_torch() -> Library:
    """hocket on torch tensors: directly, and as the backend of torch.distributed."""
    return torch_distributed("hocket")


def torch_distributed(backend: str) -> Library:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(backend)
    group: Any = dist.group.WORLD

    def forms(count: int) -> Iterator[Form]:
        x = zeros(count)
        tensor = torch.from_numpy(x)
        tensors = [tensor]

        def functional(iterations: int) -> None:
            all_reduce = dist.all_reduce
            for _ in repeat(None, iterations):
                all_reduce(tensor)

        def by_group(iterations: int) -> None:
            all_reduce = group.allreduce
            for _ in repeat(None, iterations):
                all_reduce(tensors).wait()

        yield Form(f"{backend} dist.all_reduce(tensor)", functional, x, x)
        yield Form(f"{backend} group.allreduce([tensor]).wait()", by_group, x, x)
        if backend == "hocket":
            from hocket.torch import communicator

            comm_all_reduce = communicator().all_reduce

            def direct(iterations: int) -> None:
                for _ in repeat(None, iterations):
                    comm_all_reduce(tensor)

            yield Form("hocket comm.all_reduce(tensor)", direct, x, x)

    return Library(dist.get_rank(), dist.get_world_size(), dist.barrier, forms, dist.destroy_process_group)


def mpi() -> Library:
    """An MPI through mpi4py; which one, the environment says (MPI4PY_LIBMPI)."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    name = "openmpi" if "Open MPI" in MPI.Get_library_version() else "mpich"

    def forms(count: int) -> Iterator[Form]:
        x, y = zeros(count), zeros(count)
        send, receive = [x, MPI.FLOAT], [y, MPI.FLOAT]
        in_place, memory = MPI.IN_PLACE, [MPI.memory.frombuffer(x), count, MPI.FLOAT]

        def blocking(*buffers: Any) -> Callable[[int], None]:
            first, second = buffers
            all_reduce = comm.Allreduce

            def run(iterations: int) -> None:
                for _ in repeat(None, iterations):
                    all_reduce(first, second)

            return run

        yield Form(f"{name} Allreduce(IN_PLACE, [x, FLOAT])", blocking(in_place, send), x, x)
        yield Form(f"{name} Allreduce(IN_PLACE, x)", blocking(in_place, x), x, x)
        yield Form(f"{name} Allreduce(IN_PLACE, [memory, n, FLOAT])", blocking(in_place, memory), x, x)
        yield Form(f"{name} Allreduce([x, FLOAT], [y, FLOAT])", blocking(send, receive), x, y)
        try:
            request = comm.Allreduce_init(in_place, send)
        except (NotImplementedError, MPI.Exception) as error:
            print(f"{name} has no persistent Allreduce: {error}", file=sys.stderr)
            return

        def persistent(iterations: int) -> None:
            start, wait = request.Start, request.Wait
            for _ in repeat(None, iterations):
                start()
                wait()

        yield Form(f"{name} Allreduce_init, Start, Wait", persistent, x, x)

    return Library(comm.rank, comm.size, comm.Barrier, forms)


LIBRARIES = {"hocket": hocket, "hocket_torch": hocket_torch, "gloo": gloo, "openmpi": mpi, "mpich": mpi}


def written_before(form: Form) -> Callable[[int], None]:
    """The same with an array that its rank writes before each time, as programs do: its lines are in that rank's own
    caches, from where the others have to fetch them."""

    def run(iterations: int) -> None:
        fill, once = form.x.fill, form.run
        for _ in repeat(None, iterations):
            fill(0)
            once(1)

    return run


def checked(form: Form, library: Library) -> Form:
    """Reduces twice and compares; later repetitions are on zeros, all else would overflow in place."""
    for value in (1, 5):
        form.x.fill(library.rank + value)
        form.run(1)
        expected = library.size * value + library.size * (library.size - 1) / 2
        if not (form.out == expected).all():
            raise AssertionError(f"{form.name}: {form.out[:4]} instead of {expected} in {form.out.size} float32")
    form.x.fill(0)
    form.out.fill(0)
    return form


def main() -> None:
    name, pinned, *sizes = sys.argv[1:]
    library = LIBRARIES[name]()
    if pinned == "pinned":  # after the library's start: it must not take a bound rank for one that shares its core
        pin(library.rank)
    contenders = []
    for nbytes in map(int, sizes):
        for form in library.forms(nbytes // 4):
            contenders.append(Contender(size_name(nbytes), checked(form, library).name, form.run))
            if nbytes >= LEAST_WRITTEN:
                contenders.append(Contender(f"{size_name(nbytes)}, written", form.name, written_before(form)))
        if name == "hocket" and library.size == 2:
            contenders.append(Contender(size_name(nbytes), BOUND, what_memory_allows(nbytes // 4)))
    serve(contenders, library.rank, library.barrier)
    library.finalize()


main()
