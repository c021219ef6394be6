"""Methods of a communicator that carry Python objects: pickled, their sizes exchanged, and sent as bytes with counts.

All are blocking but `isend_object`, and each is at least two operations on arrays.

Only between ranks that trust each other: unpickling runs what the sender put in. On one host objects go by shared
memory; what another library carries is sealed (`hocket.comm.object_seals`). An object that cannot be pickled on one
rank is an error on every rank that would have received something of it, and none of them hangs.
"""

from __future__ import annotations

import functools
import itertools
import pickle
from array import array
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar, Unpack

from hocket import _native
from hocket.comm.messages import PROC_NULL
from hocket.comm.object_folds import Fold, check_alike, find_fold
from hocket.comm.object_seals import EVERYONE, ObjectSeals, Sealer
from hocket.errors import InvalidArgument, InvalidState, InvalidType, ResourceExhausted

if TYPE_CHECKING:
    from hocket._native import Array, Asynchronous

_SIZE_NBYTES = 8
_MOST_SHOWN = 80  # characters of an object, in messages


_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


@dataclass(frozen=True)
class ObjectWay:
    """How a communicator carries objects.

    Args:
        seals: of what libraries carry.
        shares_memory: whether the members are on one host and may use its memory.
        moves_data: whether data travel at all, which simulated ones need not.
        leaves_process: whether what libraries carry leaves the process; then it is sealed.
    """

    seals: ObjectSeals
    shares_memory: bool
    moves_data: bool = True
    leaves_process: bool = True


class CarriesObjects(Protocol):
    """What is needed of a communicator."""

    _carries_object: bool

    @property
    def _object_way(self) -> ObjectWay: ...
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
    """Have what a method issues say that it is of an object: it meets no operation on arrays of the same size."""

    @functools.wraps(method)
    def marked(comm: CarriesObjects, *args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        comm._carries_object = True
        try:
            return method(comm, *args, **options)
        finally:
            comm._carries_object = False

    return marked  # type: ignore[return-value]


class ObjectOnItsWay:
    """An object that is being sent.

    Args:
        works: of its messages, in order.
    """

    def __init__(self, works: Sequence[_native.Work]) -> None:
        self._works = works

    @property
    def done(self) -> bool:
        """Whether all of it was sent."""
        return all(work.done for work in self._works)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all of it was sent; raises as `Work.wait`."""
        for work in reversed(self._works):
            work.wait(timeout)


def _carrier(comm: CarriesObjects, backend: str | None, timeout: float | None) -> tuple[Asynchronous, bool]:
    """Return how arrays of an operation on objects are sent, and whether objects are sealed; equal on all members.

    Each operation is waited for by itself, also inside of ``comm.coalesced()``.
    """
    way = comm._object_way
    if not way.moves_data:
        raise InvalidState("objects cannot travel where no data is moved; simulate with moves_data=True")
    if backend is None and way.shares_memory:
        backend = "shm"
    return {"async_op": True, "backend": backend, "timeout": timeout}, backend != "shm" and way.leaves_process


def all_gather_object(
    comm: CarriesObjects, obj: Any, *, backend: str | None = None, timeout: float | None = None
) -> list[Any]:
    """Return the objects of all ranks, by rank.

    Raises:
        InvalidType: the object of some rank cannot be pickled; on all ranks.
        AuthenticationError: what came from a library is not what that rank sent; nothing was unpickled.
    """
    return _all_gather_objects(comm, obj, None, backend, timeout)


def gather_object(
    comm: CarriesObjects, obj: Any, root: int, *, backend: str | None = None, timeout: float | None = None
) -> list[Any] | None:
    """Return the objects of all ranks, by rank, on the root; None on the others.

    Raises:
        InvalidType: the object of some rank cannot be pickled; on all ranks.
        AuthenticationError: as of `all_gather_object`.
    """
    return _gather_objects(comm, obj, None, root, backend, timeout)


@_of_an_object
def _all_gather_objects(
    comm: CarriesObjects, obj: Any, reduction: int | None, backend: str | None, timeout: float | None
) -> list[Any]:
    how, is_sealed = _carrier(comm, backend, timeout)
    sealer = comm._object_way.seals.for_collective(is_sealed)
    data, sizes = _share_sizes(comm, obj, reduction, sealer, how)
    return _gather_all(comm, data, sizes, sealer, how)


@_of_an_object
def _gather_objects(
    comm: CarriesObjects, obj: Any, reduction: int | None, root: int, backend: str | None, timeout: float | None
) -> list[Any] | None:
    how, is_sealed = _carrier(comm, backend, timeout)
    sealer = comm._object_way.seals.for_collective(is_sealed)
    data, sizes = _share_sizes(comm, obj, reduction, sealer, how)
    if min(sizes) < 0:  # everyone learns why
        return _gather_all(comm, data, sizes, sealer, how)
    gathered = _room(sizes if comm.rank == root else [])
    comm.gatherv(gathered if comm.rank == root else None, data, list(sizes), root, **how).wait()
    return _unpickle(gathered, sizes, sealer) if comm.rank == root else None


def all_reduce_object(
    comm: CarriesObjects, obj: Any, op: str | Fold = "sum", *, backend: str | None = None, timeout: float | None = None
) -> Any:
    """Return the objects of all ranks folded in rank order, on every rank; mpi4py's ``comm.allreduce(obj, op)``.

    For Python numbers, strings, lists, dicts: whatever `op` takes. Arrays are reduced in place, and much faster, by
    `all_reduce`.

    Args:
        obj: of this rank.
        op: a reduction's name, which stands for Python's operator ("sum" is ``+``, "min" is ``min``, "avg" divides
            the sum by the number of ranks), or a function of two objects, the same on all ranks.

    Raises:
        InvalidArgument: there is no such reduction; before anything is sent.
        CollectiveMismatch: ranks named different ones.
        InvalidType, AuthenticationError: as of `all_gather_object`.

    Example:
        >>> comm.all_reduce_object(comm.rank + 0.5)  # on two ranks
        2.0
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
    """Return the objects of all ranks folded in rank order, on the root; None on the others.

    The rest as of `all_reduce_object`; mpi4py's ``comm.reduce(obj, op, root)``.
    """
    fold, number = find_fold(op)
    gathered = _gather_objects(comm, obj, number, root, backend, timeout)
    return None if gathered is None else fold(gathered)


@_of_an_object
def broadcast_object(
    comm: CarriesObjects, obj: Any, root: int, *, backend: str | None = None, timeout: float | None = None
) -> Any:
    """Return the root's object, on every rank; what the others pass is not looked at.

    Raises:
        InvalidType: the object cannot be pickled; on all ranks.
        AuthenticationError: as of `all_gather_object`.
    """
    how, is_sealed = _carrier(comm, backend, timeout)
    sealer = comm._object_way.seals.for_collective(is_sealed)
    data, size = _pickle(obj, sealer, root) if comm.rank == root else (b"", 0)
    sizes = _int64s(1, [size])
    comm.broadcast(sizes, root, **how).wait()
    received = bytearray(data) if comm.rank == root else _room(sizes)
    comm.broadcast(received, root, **how).wait()
    if comm.rank == root and size >= 0:
        return obj
    return _unpickle(received, sizes, sealer, sender=root)[0]


@_of_an_object
def scatter_object(
    comm: CarriesObjects,
    objs: Sequence[Any] | None,
    root: int,
    *,
    backend: str | None = None,
    timeout: float | None = None,
) -> Any:
    """Return object r of the root's sequence on rank r; the others pass None.

    Raises:
        InvalidArgument: the root has another number of objects than there are ranks; before anything is sent.
        InvalidType: one of them cannot be pickled; on all ranks.
        AuthenticationError: as of `all_gather_object`.
    """
    how, is_sealed = _carrier(comm, backend, timeout)
    is_root = comm.rank == root
    _check_count(objs, comm.size) if is_root else None
    sealer = comm._object_way.seals.for_collective(is_sealed)
    pickled = [_pickle(each, sealer, root, dst) for dst, each in enumerate(objs or ())] if is_root else []
    sizes = _int64s(comm.size, [size for _, size in pickled])
    comm.broadcast(sizes, root, **how).wait()
    counts = [abs(each) for each in sizes]
    given = b"".join(data for data, _ in pickled)
    if min(sizes) < 0:
        everything = bytearray(given) if is_root else _room(sizes)
        comm.broadcast(everything, root, **how).wait()
        _raise_refused(everything, sizes, sealer, sender=root, receivers=range(comm.size))
    received = _room([counts[comm.rank]])
    comm.scatterv(received, given if is_root else None, counts, root, **how).wait()
    return _unpickle(received, [sizes[comm.rank]], sealer, sender=root, receiver=comm.rank)[0]


@_of_an_object
def all_to_all_object(
    comm: CarriesObjects, objs: Sequence[Any], *, backend: str | None = None, timeout: float | None = None
) -> list[Any]:
    """Send object r to rank r, and return what came from every rank, by rank.

    Raises:
        InvalidArgument: there are more or fewer objects than ranks; before anything is sent.
        InvalidType: one of some rank cannot be pickled; on all ranks that it, or another one of that rank, goes to.
        AuthenticationError: as of `all_gather_object`.
    """
    how, is_sealed = _carrier(comm, backend, timeout)
    _check_count(objs, comm.size)
    sealer = comm._object_way.seals.for_collective(is_sealed)
    pickled = [_pickle(each, sealer, comm.rank, dst) for dst, each in enumerate(objs)]
    failures = [dst for dst, (_, size) in enumerate(pickled) if size < 0]
    if failures:  # nobody gets a part of what cannot be sent as a whole
        pickled = [_pickle(objs[failures[0]], sealer, comm.rank, dst) for dst in range(comm.size)]
    in_sizes, out_sizes = _int64s(comm.size, [size for _, size in pickled]), _int64s(comm.size)
    comm.all_to_all(out_sizes, in_sizes, **how).wait()
    received = _room(out_sizes)
    comm.all_to_allv(
        received,
        b"".join(data for data, _ in pickled),
        [abs(each) for each in out_sizes],
        [abs(each) for each in in_sizes],
        **how,
    ).wait()
    return _unpickle(received, out_sizes, sealer, receiver=comm.rank)


def _share_sizes(
    comm: CarriesObjects, obj: Any, reduction: int | None, sealer: Sealer, how: Asynchronous
) -> tuple[bytes, Sequence[int]]:
    """Return this rank's bytes, and the sizes of those of all ranks, whose reductions have to be alike."""
    data, size = _pickle(obj, sealer, comm.rank)
    own = [size] if reduction is None else [size, reduction]
    shared = _int64s(comm.size * len(own))
    comm.all_gather(shared, _int64s(len(own), own), **how).wait()
    if reduction is None:
        return data, shared
    check_alike(shared[1::2])
    return data, shared[::2]


def _gather_all(
    comm: CarriesObjects, data: bytes, sizes: Sequence[int], sealer: Sealer, how: Asynchronous
) -> list[Any]:
    gathered = _room(sizes)
    comm.all_gatherv(gathered, data, [abs(each) for each in sizes], **how).wait()
    return _unpickle(gathered, sizes, sealer)


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
        InvalidType: it cannot be pickled; nothing was sent.
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
) -> ObjectOnItsWay:
    """Begin to send an object to a rank that calls `recv_object`; it may be changed at once.

    Raises:
        InvalidType: it cannot be pickled; nothing was sent.
    """
    how, is_sealed = _carrier(comm, backend, timeout)
    data, size = _pickle(obj, Sealer(b"", 0, 0), comm.rank)
    if size < 0:
        raise InvalidType(data.decode())
    if dst == PROC_NULL:
        return ObjectOnItsWay(())
    backend = how["backend"]
    carrier = backend or comm._choose("send", "int64", None, _SIZE_NBYTES)[0]
    data = comm._object_way.seals.for_sending(is_sealed, carrier, dst, tag).seal(data, comm.rank, dst)
    header = comm.isend(_int64s(1, [len(data)]), dst, tag, backend=backend, timeout=timeout)
    return ObjectOnItsWay((header, comm.isend(data, dst, tag, backend=backend, timeout=timeout)))


@_of_an_object
def recv_object(
    comm: CarriesObjects, src: int, tag: int = 0, *, backend: str | None = None, timeout: float | None = None
) -> Any:
    """Return an object that a rank sent by `send_object`; None from `PROC_NULL`.

    Raises:
        AuthenticationError: as of `all_gather_object`.
    """
    how, is_sealed = _carrier(comm, backend, timeout)
    if src == PROC_NULL:
        return None
    backend = how["backend"]
    sizes = _int64s(1)
    comm.irecv(sizes, src, tag, backend=backend, timeout=timeout).wait()
    carrier = backend or comm._choose("recv", "int64", None, _SIZE_NBYTES)[0]
    sealer = comm._object_way.seals.for_receiving(is_sealed, carrier, src, tag)
    received = _room(sizes)
    comm.irecv(received, src, tag, backend=backend, timeout=timeout).wait()
    return _unpickle(received, sizes, sealer, sender=src, receiver=comm.rank)[0]


def _int64s(count: int, values: Sequence[int] = ()) -> Any:
    return array("q", values) if values else array("q", bytes(_SIZE_NBYTES * count))


def _room(sizes: Sequence[int]) -> bytearray:
    """Return memory for objects of these sizes, which other ranks told."""
    nbytes = sum(map(abs, sizes))
    try:
        return bytearray(nbytes)
    except (MemoryError, OverflowError) as error:
        raise ResourceExhausted(f"there is no memory for {nbytes} bytes of objects of other ranks") from error


def _pickle(obj: Any, sealer: Sealer, sender: int, receiver: int = EVERYONE) -> tuple[bytes, int]:
    """Return the object's bytes and their number; or why there are none, and the number of bytes of that, negative."""
    try:
        data = sealer.seal(pickle.dumps(obj, protocol=5), sender, receiver)
    except Exception as error:  # whatever a class of the user's raises
        why = f"{type(obj).__name__} cannot be pickled: {type(error).__name__}: {error}"
        reason = sealer.seal(why.encode(errors="replace"), sender, receiver, is_object=False)
        return reason, -len(reason)
    return data, len(data)


def _check_count(objs: Sequence[Any] | None, size: int) -> None:
    if objs is None or not isinstance(objs, Sized) or len(objs) != size:
        given = f"{len(objs)} objects" if isinstance(objs, Sized) else repr(objs)[:_MOST_SHOWN]
        raise InvalidArgument(f"objs must hold one object for each of the {size} ranks, not {given}")


def _parts(data: bytearray, sizes: Sequence[int]) -> list[memoryview]:
    ends = list(itertools.accumulate(map(abs, sizes), initial=0))
    view = memoryview(data)
    return [view[begin:end] for begin, end in itertools.pairwise(ends)]


def _unpickle(
    data: bytearray, sizes: Sequence[int], sealer: Sealer, sender: int | None = None, receiver: int = EVERYONE
) -> list[Any]:
    """Return the objects that lie one behind the other; InvalidType if a rank sent why it has none.

    Args:
        data: from all ranks, or from one.
        sizes: of the objects.
        sealer: of the operation; all seals are looked at before anything is unpickled.
        sender: the one; None: object r is of rank r.
        receiver: for whom they are sealed.
    """
    senders = range(len(sizes)) if sender is None else [sender] * len(sizes)
    opened = [
        sealer.open(part, each, receiver, is_object=size >= 0)
        for part, each, size in zip(_parts(data, sizes), senders, sizes, strict=True)
    ]
    _raise_reason(opened, sizes, senders)
    return [pickle.loads(each) for each in opened]


def _raise_refused(
    data: bytearray, sizes: Sequence[int], sealer: Sealer, sender: int, receivers: Sequence[int]
) -> NoReturn:
    """Raise why the root has no objects for all."""
    parts = zip(_parts(data, sizes), receivers, sizes, strict=True)
    opened = [sealer.open(part, sender, receiver, is_object=size >= 0) for part, receiver, size in parts]
    _raise_reason(opened, sizes, [sender] * len(sizes))
    raise AssertionError("no size is negative")


def _raise_reason(opened: Sequence[memoryview], sizes: Sequence[int], senders: Sequence[int]) -> None:
    for part, size, sender in zip(opened, sizes, senders, strict=True):
        if size < 0:
            raise InvalidType(f"rank {sender}: its {bytes(part).decode(errors='replace')}")
