"""One rank of busy.py: ``busy_rank.py torch`` (hocket and gloo, in the same processes) or ``busy_rank.py openmpi``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import repeat

import numpy as np

from hocket.measure import Contender, serve

SMALL, LARGE, STEP, DDP = "16 bytes", "16 MiB", "0.5 ms of compute, then 200 KB", "DDP step"
NBYTES = {SMALL: 16, STEP: 200_000, LARGE: 16 << 20}
WIDTH = 288  # of square matrices whose product takes about half a millisecond

Reduce = Callable[[np.ndarray], object]


def compute(case: str) -> Callable[[], object]:
    """What a rank does before each operation."""
    if case != STEP:
        return lambda: None
    a, b, c = (np.zeros((WIDTH, WIDTH), np.float32) for _ in range(3))
    return lambda: np.matmul(a, b, out=c)


def contenders(name: str, rank: int, reducer: Callable[[np.ndarray], Callable[[], object]]) -> Iterator[Contender]:
    """A library's all_reduce in each case, checked once.

    Args:
        name: of the library.
        rank: of this process, one of two.
        reducer: gives the call that sums an array over both ranks, in place.
    """
    for case, nbytes in NBYTES.items():
        x = np.full(nbytes // 4, rank + 1, np.float32)
        reduce, before = reducer(x), compute(case)
        reduce()
        if not (x == 3).all():
            raise AssertionError(f"{name}, {case}: the sum is {x}")
        x.fill(0)

        def run(iterations: int, reduce: Callable[[], object] = reduce, before: Callable[[], object] = before) -> None:
            for _ in repeat(None, iterations):
                before()
                reduce()

        yield Contender(case, name, run)


def torch_ranks() -> None:
    """hocket and gloo: two process groups of the same processes."""
    import torch
    import torch.distributed as dist
    from ddp_rank import digit_network, digits, gradients_agree, steps
    from torch.nn.parallel import DistributedDataParallel

    import hocket.torch

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    offered: list[Contender] = []
    for backend in ("hocket", "gloo"):
        group = dist.new_group(backend=backend)

        def reducer(x: np.ndarray, backend: str = backend, group: dist.ProcessGroup = group) -> Callable[[], object]:
            if backend == "gloo":
                tensor = torch.from_numpy(x)
                return lambda: dist.all_reduce(tensor, group=group)
            comm = hocket.torch.communicator(group)
            return lambda: comm.all_reduce(x)

        offered += contenders(backend, rank, reducer)
        torch.manual_seed(0)
        model = DistributedDataParallel(digit_network(), process_group=group)
        run = steps(model, digits(), sync=True)
        run(3)
        if not gradients_agree(model):
            raise AssertionError(f"{backend}: the ranks have different gradients")
        offered.append(Contender(DDP, backend, run))
    serve(offered, rank, dist.barrier)
    offered.clear()
    del model, run
    dist.destroy_process_group()


def mpi_ranks() -> None:
    """Open MPI, by mpi4py."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if "Open MPI" not in MPI.Get_library_version():
        raise AssertionError(f"not Open MPI: {MPI.Get_library_version()}")

    def reducer(x: np.ndarray) -> Callable[[], object]:
        return lambda: world.Allreduce(MPI.IN_PLACE, x)

    rank = world.Get_rank()
    serve(list(contenders("Open MPI", rank, reducer)), rank, world.Barrier)


if __name__ == "__main__":
    {"torch": torch_ranks, "openmpi": mpi_ranks}[sys.argv[1]]()
