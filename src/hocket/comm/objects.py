"""Methods of a communicator that carry Python objects.

An object is pickled, then the ranks exchange the sizes, then the bytes. So each method is at least two operations on
arrays. All methods except `isend_object` are blocking.

Use them only between ranks that trust each other: unpickling runs code that the sender chose. On one host, objects go
through shared memory; bytes that another library carries are sealed (`hocket.comm.object_seals`). If an object cannot
be pickled on one rank, every rank that would have received a part of it raises an error, and no rank hangs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack

from hocket import _native
from hocket.comm.messages import PROC_NULL
from hocket.comm.object_bytes import (
    SIZE_NBYTES,
    check_count,
    empty_bytes,
    int64s,
    pickle_sealed,
    raise_refused,
    unpickle_sealed,
)
from hocket.comm.object_folds import Fold, check_same_reduction, find_fold
from hocket.comm.object_seals import ObjectSeals, Sealer
from hocket.errors import InvalidState, InvalidType

if TYPE_CHECKING:
    from hocket._native import Array, Asynchronous

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


@dataclass(frozen=True)
class ObjectTransport:
    """How a communicator carries objects.

    Args:
        seals: the seals of objects that libraries carry.
        shares_memory: whether the members are on one host and may use its shared memory.
        moves_data: whether data are moved; a simulation need not move them.
        leaves_process: whether the bytes that libraries carry leave the process; if so, they are sealed.
    """

    seals: ObjectSeals
    shares_memory: bool
    moves_data: bool = True
    leaves_process: bool = True


class CarriesObjects(Protocol):
    """What these functions need of a communicator."""

    _carries_object: bool

    @property
    def _object_transport(self) -> ObjectTransport: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def _choose(self, op: str, dtype: str, reduction: str | None, nbytes: int, /) -> tuple[str, str | None]: ...
    def broadcast(self, x: Array, root: int, **how: Unpack[Asynchronous]) -> _native.Work: ...
    def all_gather(self, out: Array, x: Array, **how: Unpack[Asynchronous]) -> _native.Work: ...
    def all_gatherv(self, out: Array, x: Array, counts: Sequence[int], **how: Unpack[Asynchronous]) -> _native.Work: ...
    def gatherv(
        self, out: Array | None, x: Array, counts: Sequence[int], root: int, **how: Unpack[Asynchronous]
    ) -> _native.Work: ...
    def scatterv(
        self, out: Array, x: Array | None, counts: Sequence[int], root: int, **how: Unpack[Asynchronous]
    ) -> _native.Work: ...
    def all_to_all(self, out: Array, x: Array, **how: Unpack[Asynchronous]) -> _native.Work: ...
    def all_to_allv(
        self,
        out: Array,
        x: Array,
        out_counts: Sequence[int],
        in_counts: Sequence[int],
        **how: Unpack[Asynchronous],
    ) -> _native.Work: ...
    def isend(
        self, x: Array, dst: int, tag: int = 0, *, backend: str | None = None, timeout: float | None = None
    ) -> _native.Work: ...
    def irecv(
        self, x: Array, src: int, tag: int = 0, *, backend: str | None = None, timeout: float | None = None
    ) -> _native.Work: ...


def _of_an_object(
    method: Callable[Concatenate[CarriesObjects, _Arguments], _Result],
) -> Callable[Concatenate[CarriesObjects, _Arguments], _Result]:
    """Mark the operations that a method issues as carrying objects, so that they never match operations on arrays."""

    @functools.wraps(method)
    def marked(comm: CarriesObjects, *args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        comm._carries_object = True
        try:
            return method(comm, *args, **options)
        finally:
            comm._carries_object = False

    return marked  # type: ignore[return-value]


class ObjectInFlight:
    """An object that is being sent.

    Args:
        works: works of its messages, in order.
    """

    def __init__(self, works: Sequence[_native.Work]) -> None:
        self._works = works

    @property
    def done(self) -> bool:
        """Whether the whole object was sent."""
        return all(work.done for work in self._works)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the whole object was sent; raises as `Work.wait`."""
        for work in reversed(self._works):
            work.wait(timeout)


def _carrier(comm: CarriesObjects, backend: str | None, timeout: float | None) -> tuple[Asynchronous, bool]:
    """Return the options for the operations on arrays, and whether objects are sealed; equal on all members.

    The operations are asynchronous, so that each can be waited for inside ``comm.coalesced()``, too.
    """
    transport = comm._object_transport
    if not transport.moves_data:
        raise InvalidState("a simulation without data cannot carry objects; simulate with moves_data=True")
    if backend is None and transport.shares_memory:
        backend = "shm"
    return {"async_op": True, "backend": backend, "timeout": timeout}, backend != "shm" and transport.leaves_process


def all_gather_object(
    comm: CarriesObjects, obj: Any, *, backend: str | None = None, timeout: float | None = None
) -> list[Any]:
    """Return the objects of all ranks, in rank order.

    Raises:
        InvalidType: the object of a rank cannot be pickled; raised on all ranks.
        AuthenticationError: the bytes that a library delivered are not those that the rank sent; nothing was unpickled.

    Examples:
        >>> comm.all_gather_object({"rank": comm.rank})
        [{'rank': 0}, {'rank': 1}]
    """
    return _all_gather_objects(comm, obj, None, backend, timeout)


def gather_object(
    comm: CarriesObjects, obj: Any, root: int, *, backend: str | None = None, timeout: float | None = None
) -> list[Any] | None:
    """Return the objects of all ranks, in rank order, on the root; return None on the others.

    Raises:
        InvalidType: the object of a rank cannot be pickled; raised on all ranks.
        AuthenticationError: as for `all_gather_object`.

    Examples:
        >>> names = comm.gather_object(f"rank {comm.rank}", root=0)
        >>> comm.all_gather_object(names)  # what each rank has got
        [['rank 0', 'rank 1'], None]
    """
    return _gather_objects(comm, obj, None, root, backend, timeout)


@_of_an_object
def _all_gather_objects(
    comm: CarriesObjects, obj: Any, reduction: int | None, backend: str | None, timeout: float | None
) -> list[Any]:
    how, is_sealed = _carrier(comm, backend, timeout)
    sealer = comm._object_transport.seals.for_collective(is_sealed)
    data, sizes = _share_sizes(comm, obj, reduction, sealer, how)
    return _gather_all(comm, data, sizes, sealer, how)


@_of_an_object
def _gather_objects(
    comm: CarriesObjects, obj: Any, reduction: int | None, root: int, backend: str | None, timeout: float | None
) -> list[Any] | None:
    how, is_sealed = _carrier(comm, backend, timeout)
    sealer = comm._object_transport.seals.for_collective(is_sealed)
    data, sizes = _share_sizes(comm, obj, reduction, sealer, how)
    if min(sizes) < 0:  # all ranks receive the reason
        return _gather_all(comm, data, sizes, sealer, how)
    gathered = empty_bytes(sizes if comm.rank == root else [])
    comm.gatherv(gathered if comm.rank == root else None, data, list(sizes), root, **how).wait()
    return unpickle_sealed(gathered, sizes, sealer) if comm.rank == root else None


def all_reduce_object(
    comm: CarriesObjects, obj: Any, op: str | Fold = "sum", *, backend: str | None = None, timeout: float | None = None
) -> Any:
    """Reduce the objects of all ranks in rank order, and return the result on every rank; mpi4py's ``comm.allreduce``.

    For Python numbers, strings, lists, dicts: all types that `op` accepts. For arrays, `all_reduce` is much faster.

    Args:
        obj: object of this rank.
        op: name of a reduction, which stands for a Python operator ("sum" is ``+``, "min" is ``min``, "avg" divides
            the sum by the number of ranks), or a function of two objects, the same on all ranks.

    Raises:
        InvalidArgument: the reduction is not known; nothing was sent.
        CollectiveMismatch: ranks named different reductions.
        InvalidType, AuthenticationError: as for `all_gather_object`.

    Examples:
        >>> comm.all_reduce_object(comm.rank + 0.5)
        2.0
        >>> comm.all_reduce_object({comm.rank}, lambda a, b: a | b)
        {0, 1}
    """
    fold, number = find_fold(op)
    return fold(_all_gather_objects(comm, obj, number, backend, timeout))


def reduce_object(
    comm: CarriesObjects,
    obj: Any,
    root: int,
    op: str | Fold = "sum",
    *,
    backend: str | None = None,
    timeout: float | None = None,
) -> Any:
    """Reduce the objects of all ranks in rank order, and return the result on the root, None on the others.

    Arguments and errors are as for `all_reduce_object`; mpi4py's ``comm.reduce(obj, op, root)``.

    Examples:
        >>> total = comm.reduce_object(comm.rank + 1, root=1)
        >>> comm.all_gather_object(total)  # what each rank has got
        [None, 3]
    """
    fold, number = find_fold(op)
    gathered = _gather_objects(comm, obj, number, root, backend, timeout)
    return None if gathered is None else fold(gathered)


@_of_an_object
def broadcast_object(
    comm: CarriesObjects, obj: Any, root: int, *, backend: str | None = None, timeout: float | None = None
) -> Any:
    """Return the root's object on every rank; the objects that the others pass are ignored.

    Raises:
        InvalidType: the object cannot be pickled; raised on all ranks.
        AuthenticationError: as for `all_gather_object`.

    Examples:
        >>> settings = {"learning_rate": 0.1} if comm.rank == 0 else None
        >>> comm.broadcast_object(settings, root=0)
        {'learning_rate': 0.1}
    """
    how, is_sealed = _carrier(comm, backend, timeout)
    sealer = comm._object_transport.seals.for_collective(is_sealed)
    data, size = pickle_sealed(obj, sealer, root) if comm.rank == root else (b"", 0)
    sizes = int64s(1, [size])
    comm.broadcast(sizes, root, **how).wait()
    received = bytearray(data) if comm.rank == root else empty_bytes(sizes)
    comm.broadcast(received, root, **how).wait()
    if comm.rank == root and size >= 0:
        return obj
    return unpickle_sealed(received, sizes, sealer, sender=root)[0]


@_of_an_object
def scatter_object(
    comm: CarriesObjects,
    objs: Sequence[Any] | None,
    root: int,
    *,
    backend: str | None = None,
    timeout: float | None = None,
) -> Any:
    """Return object r of the root's sequence on rank r; the other ranks pass None.

    Raises:
        InvalidArgument: the number of objects is not the number of ranks; nothing was sent.
        InvalidType: an object cannot be pickled; raised on all ranks.
        AuthenticationError: as for `all_gather_object`.

    Examples:
        >>> part = comm.scatter_object(["first", "second"] if comm.rank == 0 else None, root=0)
        >>> comm.all_gather_object(part)  # what each rank has got
        ['first', 'second']
    """
    how, is_sealed = _carrier(comm, backend, timeout)
    is_root = comm.rank == root
    check_count(objs, comm.size) if is_root else None
    sealer = comm._object_transport.seals.for_collective(is_sealed)
    pickled = [pickle_sealed(each, sealer, root, dst) for dst, each in enumerate(objs or ())] if is_root else []
    sizes = int64s(comm.size, [size for _, size in pickled])
    comm.broadcast(sizes, root, **how).wait()
    counts = [abs(each) for each in sizes]
    given = b"".join(data for data, _ in pickled)
    if min(sizes) < 0:
        everything = bytearray(given) if is_root else empty_bytes(sizes)
        comm.broadcast(everything, root, **how).wait()
        raise_refused(everything, sizes, sealer, sender=root, receivers=range(comm.size))
    received = empty_bytes([counts[comm.rank]])
    comm.scatterv(received, given if is_root else None, counts, root, **how).wait()
    return unpickle_sealed(received, [sizes[comm.rank]], sealer, sender=root, receiver=comm.rank)[0]


@_of_an_object
def all_to_all_object(
    comm: CarriesObjects, objs: Sequence[Any], *, backend: str | None = None, timeout: float | None = None
) -> list[Any]:
    """Send object r to rank r, and return the received objects in rank order.

    Raises:
        InvalidArgument: the number of objects is not the number of ranks; nothing was sent.
        InvalidType: an object of a rank cannot be pickled; raised on all ranks that this rank sends to.
        AuthenticationError: as for `all_gather_object`.

    Examples:
        >>> received = comm.all_to_all_object([f"{comm.rank} to 0", f"{comm.rank} to 1"])
        >>> comm.all_gather_object(received)  # what each rank has got
        [['0 to 0', '1 to 0'], ['0 to 1', '1 to 1']]
    """
    how, is_sealed = _carrier(comm, backend, timeout)
    check_count(objs, comm.size)
    sealer = comm._object_transport.seals.for_collective(is_sealed)
    pickled = [pickle_sealed(each, sealer, comm.rank, dst) for dst, each in enumerate(objs)]
    failures = [dst for dst, (_, size) in enumerate(pickled) if size < 0]
    if failures:  # no rank receives a part of something that cannot be sent as a whole
        pickled = [pickle_sealed(objs[failures[0]], sealer, comm.rank, dst) for dst in range(comm.size)]
    in_sizes, out_sizes = int64s(comm.size, [size for _, size in pickled]), int64s(comm.size)
    comm.all_to_all(out_sizes, in_sizes, **how).wait()
    received = empty_bytes(out_sizes)
    comm.all_to_allv(
        received,
        b"".join(data for data, _ in pickled),
        [abs(each) for each in out_sizes],
        [abs(each) for each in in_sizes],
        **how,
    ).wait()
    return unpickle_sealed(received, out_sizes, sealer, receiver=comm.rank)


def _share_sizes(
    comm: CarriesObjects, obj: Any, reduction: int | None, sealer: Sealer, how: Asynchronous
) -> tuple[bytes, Sequence[int]]:
    """Return this rank's bytes, and the sizes on all ranks; check that all ranks use the same reduction."""
    data, size = pickle_sealed(obj, sealer, comm.rank)
    own = [size] if reduction is None else [size, reduction]
    shared = int64s(comm.size * len(own))
    comm.all_gather(shared, int64s(len(own), own), **how).wait()
    if reduction is None:
        return data, shared
    check_same_reduction(shared[1::2])
    return data, shared[::2]


def _gather_all(
    comm: CarriesObjects, data: bytes, sizes: Sequence[int], sealer: Sealer, how: Asynchronous
) -> list[Any]:
    gathered = empty_bytes(sizes)
    comm.all_gatherv(gathered, data, [abs(each) for each in sizes], **how).wait()
    return unpickle_sealed(gathered, sizes, sealer)


def send_object(
    comm: CarriesObjects,
    obj: Any,
    dst: int,
    tag: int = 0,
    *,
    backend: str | None = None,
    timeout: float | None = None,
) -> None:
    """Send an object to a rank that calls `recv_object`.

    Raises:
        InvalidType: the object cannot be pickled; nothing was sent.

    Examples:
        >>> if comm.rank == 0:
        ...     comm.send_object({"step": 3}, dst=1)
        >>> received = comm.recv_object(src=0) if comm.rank == 1 else None
        >>> comm.all_gather_object(received)  # what each rank has got
        [None, {'step': 3}]
    """
    isend_object(comm, obj, dst, tag, backend=backend, timeout=timeout).wait()


@_of_an_object
def isend_object(
    comm: CarriesObjects,
    obj: Any,
    dst: int,
    tag: int = 0,
    *,
    backend: str | None = None,
    timeout: float | None = None,
) -> ObjectInFlight:
    """Start to send an object to a rank that calls `recv_object`; you can change the object at once.

    Raises:
        InvalidType: the object cannot be pickled; nothing was sent.

    Examples:
        >>> other = 1 - comm.rank
        >>> sending = comm.isend_object([1, 2], other)
        >>> comm.recv_object(other)
        [1, 2]
        >>> sending.wait()
    """
    how, is_sealed = _carrier(comm, backend, timeout)
    data, size = pickle_sealed(obj, Sealer(b"", 0, 0), comm.rank)
    if size < 0:
        raise InvalidType(data.decode())
    if dst == PROC_NULL:
        return ObjectInFlight(())
    backend = how["backend"]
    carrier = backend or comm._choose("send", "int64", None, SIZE_NBYTES)[0]
    data = comm._object_transport.seals.for_sending(is_sealed, carrier, dst, tag).seal(data, comm.rank, dst)
    header = comm.isend(int64s(1, [len(data)]), dst, tag, backend=backend, timeout=timeout)
    return ObjectInFlight((header, comm.isend(data, dst, tag, backend=backend, timeout=timeout)))


@_of_an_object
def recv_object(
    comm: CarriesObjects, src: int, tag: int = 0, *, backend: str | None = None, timeout: float | None = None
) -> Any:
    """Return an object that a rank sent with `send_object`; None from `PROC_NULL`.

    Raises:
        AuthenticationError: as for `all_gather_object`.

    Examples:
        >>> other = 1 - comm.rank
        >>> sending = comm.isend_object("hello", other, tag=5)
        >>> comm.recv_object(other, tag=5)
        'hello'
        >>> sending.wait()
    """
    how, is_sealed = _carrier(comm, backend, timeout)
    if src == PROC_NULL:
        return None
    backend = how["backend"]
    sizes = int64s(1)
    comm.irecv(sizes, src, tag, backend=backend, timeout=timeout).wait()
    carrier = backend or comm._choose("recv", "int64", None, SIZE_NBYTES)[0]
    sealer = comm._object_transport.seals.for_receiving(is_sealed, carrier, src, tag)
    received = empty_bytes(sizes)
    comm.irecv(received, src, tag, backend=backend, timeout=timeout).wait()
    return unpickle_sealed(received, sizes, sealer, sender=src, receiver=comm.rank)[0]
