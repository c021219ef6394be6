"""A replay of the operations of a recorded or published step over a communicator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hocket.comm.communicator import Communicator
from hocket.errors import InvalidArgument
from hocket.trace.traffic import WITH_BLOCKS, Traffic, TrafficStep

if TYPE_CHECKING:
    import numpy as np

    from hocket._native import Work


@dataclass(frozen=True)
class OperationArrays:
    """Arrays of one operation: one block, and one block per rank if the operation needs it."""

    one: Any
    all: Any
    received: Any


class Replay:
    """One step of traffic, ready to run; each operation has its own arrays of zeros.

    Args:
        comm: communicator that carries the operations.
        traffic: traffic that was recorded or built for a communicator of this size.
        computes: whether the time between operations is spent (`Communicator.compute`).
        like: another replay of the same traffic, whose arrays are reused. Only one of the two may run at a time, unless
            they belong to virtual ranks that move no data.

    Raises:
        InvalidArgument: the traffic has another number of ranks than `comm`, or is not the traffic of `like`.
    """

    def __init__(
        self, comm: Communicator, traffic: Traffic, *, computes: bool = False, like: Replay | None = None
    ) -> None:
        if traffic.num_ranks != comm.size:
            raise InvalidArgument(f"{traffic.name} has {traffic.num_ranks} ranks, but the communicator has {comm.size}")
        if like is not None and like.traffic != traffic:
            raise InvalidArgument(f"{traffic.name} cannot use the arrays of {like.traffic.name}")
        self.traffic: Traffic = traffic
        self._comm = comm
        self._computes = computes
        self._arrays: list[OperationArrays] = (
            [_make_arrays(step, comm) for step in traffic.steps] if like is None else like._arrays
        )
        self._calls = [_prepare(comm, step, arrays) for step, arrays in zip(traffic.steps, self._arrays, strict=True)]

    def __call__(self) -> None:
        """Run the step once: issue all operations in order, with the waits of the traffic, and wait for the rest."""
        works: dict[int, Work] = {}
        for index, (step, call) in enumerate(zip(self.traffic.steps, self._calls, strict=True)):
            for waited in step.waits:
                works.pop(waited).wait()
            if self._computes and step.compute_s:
                self._comm.compute(step.compute_s)
            work = call()
            if work is not None:
                works[index] = work
        for work in works.values():
            work.wait()


def _prepare(comm: Communicator, step: TrafficStep, arrays: OperationArrays) -> Callable[[], Work | None]:
    arguments = arguments_of(step.kind, arrays, comm.rank, step.root, step.reduction)
    return partial(getattr(comm, step.kind), *arguments, async_op=step.is_async)


def arguments_of(
    op: str, arrays: OperationArrays, rank: int, root: int | None, reduction: str | None = None
) -> tuple[Any, ...]:
    """Return what a collective is called with, but for options; None: it has no root, or its usual reduction."""
    at_root = arrays.all if root == rank else None
    given: dict[str, tuple[Any, ...]] = {
        "barrier": (),
        "all_gather": (arrays.all, arrays.one),
        "reduce_scatter": (arrays.one, arrays.all),
        "all_to_all": (arrays.received, arrays.all),
        "gather": (at_root, arrays.one),
        "scatter": (arrays.one, at_root),
    }
    return *given.get(op, (arrays.one,)), *(each for each in (root, reduction) if each is not None)


def _make_arrays(step: TrafficStep, comm: Communicator) -> OperationArrays:
    has_blocks = step.kind in WITH_BLOCKS
    counts = 1, comm.size if has_blocks else 0, comm.size if step.kind == "all_to_all" else 0
    return OperationArrays(*(_zeros(step, count, comm.is_virtual) for count in counts))


def _zeros(step: TrafficStep, num_blocks: int, is_virtual: bool) -> np.ndarray:
    import numpy as np

    # bfloat16 is replaced by float16: zeros of both have the same bits, and libraries handle both in the same way.
    name = "float16" if step.dtype == "bfloat16" else step.dtype
    x = np.zeros(num_blocks * step.nbytes // np.dtype(name).itemsize, name)
    if not is_virtual:
        x.fill(0)  # written, so that every page is allocated
    return x
