"""mpi4py, called directly; the launcher of the job determines which MPI it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from hocket.backends._mpi import unlink_shared_memory
from hocket.bench.drivers.base import Binder, Call, Driver, gather_and_fold
from hocket.errors import InvalidArgument

Counts = Sequence[int]


class Mpi4pyDriver(Driver):
    """mpi4py's upper-case methods for memory, its lower-case methods for objects, and `mpi4py.util.pkl5` for objects
    with out-of-band buffers.

    Args:
        name: the name by which users choose it, such as "mpi4py:mpich".
    """

    reduces_to_start = True  # as MPI_Reduce_scatter_block does with MPI_IN_PLACE

    def __init__(self, name: str) -> None:
        from mpi4py import MPI
        from mpi4py.util import pkl5

        self.name = name
        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        self._comm.Barrier()  # all ranks have attached: unlinked now, the memory is freed even after a kill
        unlink_shared_memory()
        self.refusals = (*Driver.refusals, MPI.Exception, TypeError, ValueError, KeyError)
        self.rank, self.size = self._comm.rank, self._comm.size
        memory = self._memory()
        objects = _objects(self._comm)
        out_of_band = {op: bind for op, bind in _objects(pkl5.Intracomm(self._comm)).items() if op not in _REDUCING}
        self._binders = {"buffer": memory, "dlpack": memory, "pickle": objects, "pickle5": out_of_band}

    def barrier(self) -> object:
        self._comm.Barrier()
        return None

    def share(self, obj: Any) -> list[Any]:
        return list(self._comm.allgather(obj))

    def wait(self, requests: Sequence[Any]) -> object:
        return requests[0].Wait() if len(requests) == 1 else self._mpi.Request.Waitall(requests)

    def wait_objects(self, requests: Sequence[Any]) -> list[Any]:
        found: list[Any] = type(requests[0]).waitall(list(requests))
        return found

    def begin(self, op: str, *arguments: Any) -> Call:
        bound = self._bind_blocking(op, *arguments)
        return partial(self._find_variant("I{}", bound), *bound.args)

    def prepare(self, op: str, *arguments: Any) -> Call:
        bound = self._bind_blocking(op, *arguments)
        request = self._find_variant("{}_init", bound)(*bound.args)

        def call() -> None:
            request.Start()
            request.Wait()

        return call

    def _bind_blocking(self, op: str, *arguments: Any) -> partial[Any]:
        """Return a blocking method with its arguments."""
        call = self.bind("buffer", op, *arguments)
        return call if isinstance(call, partial) else partial(call)

    def _find_variant(self, pattern: str, blocking: partial[Any]) -> Callable[..., Any]:
        """Return another form of a blocking method, such as Iallreduce or Allreduce_init of Allreduce."""
        method = blocking.func.__name__
        name = pattern.format(method.lower() if pattern[0] == "I" else method)
        found: Callable[..., Any] | None = getattr(self._comm, name, None)
        if found is None:
            raise InvalidArgument(f"{self.name} has no {name}")
        return found

    def _memory(self) -> Mapping[str, Binder]:
        comm, mpi, is_root = self._comm, self._mpi, self.rank == 0
        ops = {"sum": mpi.SUM, "prod": mpi.PROD, "min": mpi.MIN, "max": mpi.MAX}

        def spec(x: Any, counts: Counts) -> Any:
            return None if x is None else [x, (list(counts), [0, *accumulate(counts)][:-1])]

        def reduce_(x: Any, root: int, op: str) -> Callable[[], object]:
            return partial(comm.Reduce, mpi.IN_PLACE if is_root else x, x if is_root else None, ops[op], root)

        return {
            "send": lambda x, peer: partial(comm.Send, x, peer),
            "recv": lambda x, peer: partial(comm.Recv, x, peer),
            "isend": lambda x, peer: partial(comm.Isend, x, peer),
            "irecv": lambda x, peer: partial(comm.Irecv, x, peer),
            "barrier": lambda: comm.Barrier,
            "broadcast": lambda x, root: partial(comm.Bcast, x, root),
            "reduce": reduce_,
            "all_reduce": lambda x, op: partial(comm.Allreduce, mpi.IN_PLACE, x, ops[op]),
            "scan": lambda x, op: partial(comm.Scan, mpi.IN_PLACE, x, ops[op]),
            "gather": lambda out, x, root: partial(comm.Gather, x, out, root),
            "scatter": lambda out, x, root: partial(comm.Scatter, x, out, root),
            "all_gather": lambda out, x: partial(comm.Allgather, x, out),
            "all_to_all": lambda out, x: partial(comm.Alltoall, x, out),
            "reduce_scatter": lambda out, x, op: partial(comm.Reduce_scatter_block, x, out, ops[op]),
            "gatherv": lambda out, x, counts, root: partial(comm.Gatherv, x, spec(out, counts), root),
            "scatterv": lambda out, x, counts, root: partial(comm.Scatterv, spec(x, counts), out, root),
            "all_gatherv": lambda out, x, counts: partial(comm.Allgatherv, x, spec(out, counts)),
            "all_to_allv": lambda out, x, counts, given: partial(comm.Alltoallv, spec(x, given), spec(out, counts)),
            "reduce_scatterv": lambda out, x, counts, op: partial(comm.Reduce_scatter, x, out, counts, ops[op]),
            "reduce out-of-place": lambda out, x, root, op: partial(comm.Reduce, x, out, ops[op], root),
            "all_reduce out-of-place": lambda out, x, op: partial(comm.Allreduce, x, out, ops[op]),
            "scan out-of-place": lambda out, x, op: partial(comm.Scan, x, out, ops[op]),
            "gather in-place": lambda out, x, root: partial(comm.Gather, mpi.IN_PLACE if is_root else x, out, root),
            "scatter in-place": lambda out, x, root: partial(comm.Scatter, x, mpi.IN_PLACE if is_root else out, root),
            "all_gather in-place": lambda out, x: partial(comm.Allgather, mpi.IN_PLACE, out),
            "all_to_all in-place": lambda out, x: partial(comm.Alltoall, mpi.IN_PLACE, out),
            "reduce_scatter in-place": lambda out, x, op: partial(comm.Reduce_scatter_block, mpi.IN_PLACE, x, ops[op]),
        }


_REDUCING = ("reduce", "all_reduce", "reduce_scatter")


def _objects(comm: Any) -> Mapping[str, Binder]:
    """Return the lower-case methods; each rank folds for reduce_scatter, which mpi4py does not have for objects."""
    return {
        "send": lambda obj, peer: partial(comm.send, obj, peer),
        "recv": lambda peer: partial(comm.recv, None, peer),
        "isend": lambda obj, peer: partial(comm.isend, obj, peer),
        "irecv": lambda nbytes, peer: partial(comm.irecv, nbytes, peer),
        "barrier": lambda: comm.barrier,
        "broadcast": lambda obj: partial(comm.bcast, obj, 0),
        "gather": lambda obj: partial(comm.gather, obj, 0),
        "scatter": lambda objs: partial(comm.scatter, objs, 0),
        "all_gather": lambda obj: partial(comm.allgather, obj),
        "all_to_all": lambda objs: partial(comm.alltoall, objs),
        "reduce": lambda obj, add: partial(comm.reduce, obj, add, 0),
        "all_reduce": lambda obj, add: partial(comm.allreduce, obj, add),
        "reduce_scatter": partial(partial, gather_and_fold, comm.alltoall),
    }
