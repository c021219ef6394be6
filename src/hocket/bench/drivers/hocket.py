"""hocket itself, over one of its backends, or over all of them by the choice of its policy ("mix")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hocket.bench.drivers.base import Binder, Call, Driver, gather_and_fold
from hocket.comm import Communicator, Policy

MIX = "mix"
_MEMORY = (
    "send", "recv", "isend", "irecv", "barrier", "broadcast", "reduce", "all_reduce", "scan", "gather", "scatter",
    "all_gather", "all_to_all", "reduce_scatter", "gatherv", "scatterv", "all_gatherv", "all_to_allv",
    "reduce_scatterv",
)  # fmt: skip

_ALSO_IN_PLACE = ("gather", "scatter", "all_gather", "reduce_scatter")
"""Operations that accept a rank's own data at its place in the whole array."""


class HocketDriver(Driver):
    """The methods of a communicator.

    Args:
        world: communicator of all ranks that has the backend.
        backend: name of the backend, or "mix".
    """

    def __init__(self, world: Communicator, backend: str) -> None:
        self.name = backend
        self._comm = world.dup()
        if backend != MIX:
            self._comm.policy = Policy.fixed({"*": backend})
        self.rank, self.size = world.rank, world.size
        memory: dict[str, Binder] = {op: partial(partial, getattr(self._comm, op)) for op in _MEMORY}
        memory |= {f"{op} in-place": memory[op] for op in _ALSO_IN_PLACE}
        self._binders = {"buffer": memory, "dlpack": memory, "pickle": self._objects(), "pickle5": {}}

    def begin(self, op: str, *arguments: Any) -> Call:
        return partial(getattr(self._comm, op), *arguments, async_op=True)

    def prepare(self, op: str, *arguments: Any) -> Call:
        return self._comm.prepare(op, *arguments)

    def shared(self, count: int, dtype: str) -> Any:
        return self._comm.zeros(count, dtype)

    def barrier(self) -> object:
        self._comm.barrier()
        return None

    def share(self, obj: Any) -> list[Any]:
        return self._comm.all_gather_object(obj)

    def _objects(self) -> Mapping[str, Binder]:
        """Return the operations on objects; reductions gather first, because no kernel of hocket reduces objects."""
        comm = self._comm
        gather, scatter = partial(_call_with_root, comm.gather_object), partial(_call_with_root, comm.scatter_object)
        return {
            "send": lambda obj, peer: partial(comm.send_object, obj, peer),
            "recv": lambda peer: partial(comm.recv_object, peer),
            "isend": lambda obj, peer: partial(comm.isend_object, obj, peer),
            "irecv": lambda nbytes, peer: partial(_DeferredReceive, partial(comm.recv_object, peer)),
            "barrier": lambda: comm.barrier,
            "broadcast": lambda obj: partial(comm.broadcast_object, obj, 0),
            "gather": lambda obj: partial(gather, obj),
            "scatter": lambda objs: partial(scatter, objs),
            "all_gather": lambda obj: partial(comm.all_gather_object, obj),
            "all_to_all": lambda objs: partial(comm.all_to_all_object, objs),
            "reduce": partial(partial, gather_and_fold, gather),
            "all_reduce": partial(partial, gather_and_fold, comm.all_gather_object),
            "reduce_scatter": partial(partial, gather_and_fold, comm.all_to_all_object),
        }


class _DeferredReceive:
    """A receive that runs in `wait`: the size of an object is unknown, so only the next message can be received."""

    def __init__(self, receive: Call) -> None:
        self.wait = receive


def _call_with_root(method: Callable[[Any, int], Any], obj: Any) -> Any:
    return method(obj, 0)
