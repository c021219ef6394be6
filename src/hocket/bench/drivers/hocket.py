"""hocket itself, over one of its backends, or over all of them as its policy chooses ("mix")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hocket.bench.drivers.base import Binder, Call, Driver, folded
from hocket.comm import Communicator, Policy

MIX = "mix"
_MEMORY = (
    "send", "recv", "isend", "irecv", "barrier", "broadcast", "reduce", "all_reduce", "scan", "gather", "scatter",
    "all_gather", "all_to_all", "reduce_scatter", "gatherv", "scatterv", "all_gatherv", "all_to_allv",
    "reduce_scatterv",
)  # fmt: skip

_ALSO_IN_PLACE = ("gather", "scatter", "all_gather", "reduce_scatter")
"""What takes a rank's own data where its part of the whole is."""


class HocketDriver(Driver):
    """Methods of a communicator.

    Args:
        world: of all ranks, with the backend.
        backend: its name, or "mix".
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
        """Operations on objects; those that add up gather first, as hocket folds what it has no kernel for."""
        comm = self._comm
        gather, scatter = partial(_with_root, comm.gather_object), partial(_with_root, comm.scatter_object)
        return {
            "send": lambda obj, peer: partial(comm.send_object, obj, peer),
            "recv": lambda peer: partial(comm.recv_object, peer),
            "isend": lambda obj, peer: partial(comm.isend_object, obj, peer),
            "irecv": lambda nbytes, peer: partial(_Later, partial(comm.recv_object, peer)),
            "barrier": lambda: comm.barrier,
            "broadcast": lambda obj: partial(comm.broadcast_object, obj, 0),
            "gather": lambda obj: partial(gather, obj),
            "scatter": lambda objs: partial(scatter, objs),
            "all_gather": lambda obj: partial(comm.all_gather_object, obj),
            "all_to_all": lambda objs: partial(comm.all_to_all_object, objs),
            "reduce": partial(partial, folded, gather),
            "all_reduce": partial(partial, folded, comm.all_gather_object),
            "reduce_scatter": partial(partial, folded, comm.all_to_all_object),
        }


class _Later:
    """An object that is received when it is waited for, in the order of waiting: of messages whose size is not known,
    only the next one can be."""

    def __init__(self, receive: Call) -> None:
        self.wait = receive


def _with_root(method: Callable[[Any, int], Any], obj: Any) -> Any:
    return method(obj, 0)
