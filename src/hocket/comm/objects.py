"""Operations on Python objects: pickled, their sizes exchanged, and sent as bytes with counts.

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
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

from hocket import _native
from hocket.comm.messages import PROC_NULL
from hocket.comm.object_folds import Fold, check_alike, find_fold
from hocket.comm.object_seals import EVERYONE, ObjectSeals, Sealer
from hocket.errors import InvalidArgument, InvalidState, InvalidType, ResourceExhausted

if TYPE_CHECKING:
    from hocket._native import Asynchronous
    from hocket.comm.fabric import Backends, Fabric

_SIZE_NBYTES = 8
_MOST_SHOWN = 80  # characters of an object, in messages


_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


def _of_an_object(
    method: Callable[Concatenate[ObjectOperations, _Arguments], _Result],
) -> Callable[Concatenate[ObjectOperations, _Arguments], _Result]:
    """Have what a method issues say that it is of an object: it meets no operation on arrays of the same size."""

    @functools.wraps(method)
    def marked(self: ObjectOperations, *args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        self._carries_object = True
        try:
            return method(self, *args, **options)
        finally:
            self._carries_object = False

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


class ObjectOperations(_native.Communicator):
    """The part of a communicator that carries objects; blocking, each at least two operations on arrays."""

    _fabric: Fabric
    _backends: Backends
    _object_seals: ObjectSeals

    def _carrier(self, backend: str | None, timeout: float | None) -> tuple[Asynchronous, bool]:
        """Return how arrays of an operation on objects are sent, and whether objects are sealed; equal on all members.

        Each operation is waited for by itself, also inside of ``comm.coalesced()``.
        """
        virtual = self._fabric.virtual
        if virtual is not None and not virtual.moves_data:
            raise InvalidState("objects cannot travel where no data is moved; simulate with moves_data=True")
        if backend is None and "shm" in self._backends:  # only within a host
            backend = "shm"
        return {"async_op": True, "backend": backend, "timeout": timeout}, backend != "shm" and virtual is None

    def all_gather_object(self, obj: Any, *, backend: str | None = None, timeout: float | None = None) -> list[Any]:
        """Return the objects of all ranks, by rank.

        Raises:
            InvalidType: the object of some rank cannot be pickled; on all ranks.
            AuthenticationError: what came from a library is not what that rank sent; nothing was unpickled.
        """
        return self._all_gather_objects(obj, None, backend, timeout)

    def gather_object(
        self, obj: Any, root: int, *, backend: str | None = None, timeout: float | None = None
    ) -> list[Any] | None:
        """Return the objects of all ranks, by rank, on the root; None on the others.

        Raises:
            InvalidType: the object of some rank cannot be pickled; on all ranks.
            AuthenticationError: as of `all_gather_object`.
        """
        return self._gather_objects(obj, None, root, backend, timeout)

    @_of_an_object
    def _all_gather_objects(
        self, obj: Any, reduction: int | None, backend: str | None, timeout: float | None
    ) -> list[Any]:
        how, is_sealed = self._carrier(backend, timeout)
        sealer = self._object_seals.for_collective(is_sealed)
        data, sizes = self._share_sizes(obj, reduction, sealer, how)
        return self._gather_all(data, sizes, sealer, how)

    @_of_an_object
    def _gather_objects(
        self, obj: Any, reduction: int | None, root: int, backend: str | None, timeout: float | None
    ) -> list[Any] | None:
        how, is_sealed = self._carrier(backend, timeout)
        sealer = self._object_seals.for_collective(is_sealed)
        data, sizes = self._share_sizes(obj, reduction, sealer, how)
        if min(sizes) < 0:  # everyone learns why
            return self._gather_all(data, sizes, sealer, how)
        gathered = _room(sizes if self.rank == root else [])
        self.gatherv(gathered if self.rank == root else None, data, list(sizes), root, **how).wait()
        return _unpickle(gathered, sizes, sealer) if self.rank == root else None

    def all_reduce_object(
        self, obj: Any, op: str | Fold = "sum", *, backend: str | None = None, timeout: float | None = None
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
        return fold(self._all_gather_objects(obj, number, backend, timeout))

    def reduce_object(
        self, obj: Any, root: int, op: str | Fold = "sum", *, backend: str | None = None, timeout: float | None = None
    ) -> Any:
        """Return the objects of all ranks folded in rank order, on the root; None on the others.

        The rest as of `all_reduce_object`; mpi4py's ``comm.reduce(obj, op, root)``.
        """
        fold, number = find_fold(op)
        gathered = self._gather_objects(obj, number, root, backend, timeout)
        return None if gathered is None else fold(gathered)

    @_of_an_object
    def broadcast_object(self, obj: Any, root: int, *, backend: str | None = None, timeout: float | None = None) -> Any:
        """Return the root's object, on every rank; what the others pass is not looked at.

        Raises:
            InvalidType: the object cannot be pickled; on all ranks.
            AuthenticationError: as of `all_gather_object`.
        """
        how, is_sealed = self._carrier(backend, timeout)
        sealer = self._object_seals.for_collective(is_sealed)
        data, size = _pickle(obj, sealer, root) if self.rank == root else (b"", 0)
        sizes = _int64s(1, [size])
        self.broadcast(sizes, root, **how).wait()
        received = bytearray(data) if self.rank == root else _room(sizes)
        self.broadcast(received, root, **how).wait()
        if self.rank == root and size >= 0:
            return obj
        return _unpickle(received, sizes, sealer, sender=root)[0]

    @_of_an_object
    def scatter_object(
        self,
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
        how, is_sealed = self._carrier(backend, timeout)
        is_root = self.rank == root
        _check_count(objs, self.size) if is_root else None
        sealer = self._object_seals.for_collective(is_sealed)
        pickled = [_pickle(each, sealer, root, dst) for dst, each in enumerate(objs or ())] if is_root else []
        sizes = _int64s(self.size, [size for _, size in pickled])
        self.broadcast(sizes, root, **how).wait()
        counts = [abs(each) for each in sizes]
        given = b"".join(data for data, _ in pickled)
        if min(sizes) < 0:
            everything = bytearray(given) if is_root else _room(sizes)
            self.broadcast(everything, root, **how).wait()
            _raise_refused(everything, sizes, sealer, sender=root, receivers=range(self.size))
        received = _room([counts[self.rank]])
        self.scatterv(received, given if is_root else None, counts, root, **how).wait()
        return _unpickle(received, [sizes[self.rank]], sealer, sender=root, receiver=self.rank)[0]

    @_of_an_object
    def all_to_all_object(
        self, objs: Sequence[Any], *, backend: str | None = None, timeout: float | None = None
    ) -> list[Any]:
        """Send object r to rank r, and return what came from every rank, by rank.

        Raises:
            InvalidArgument: there are more or fewer objects than ranks; before anything is sent.
            InvalidType: one of some rank cannot be pickled; on all ranks that it, or another one of that rank, goes to.
            AuthenticationError: as of `all_gather_object`.
        """
        how, is_sealed = self._carrier(backend, timeout)
        _check_count(objs, self.size)
        sealer = self._object_seals.for_collective(is_sealed)
        pickled = [_pickle(each, sealer, self.rank, dst) for dst, each in enumerate(objs)]
        failures = [dst for dst, (_, size) in enumerate(pickled) if size < 0]
        if failures:  # nobody gets a part of what cannot be sent as a whole
            pickled = [_pickle(objs[failures[0]], sealer, self.rank, dst) for dst in range(self.size)]
        in_sizes, out_sizes = _int64s(self.size, [size for _, size in pickled]), _int64s(self.size)
        self.all_to_all(out_sizes, in_sizes, **how).wait()
        received = _room(out_sizes)
        self.all_to_allv(
            received,
            b"".join(data for data, _ in pickled),
            [abs(each) for each in out_sizes],
            [abs(each) for each in in_sizes],
            **how,
        ).wait()
        return _unpickle(received, out_sizes, sealer, receiver=self.rank)

    def _share_sizes(
        self, obj: Any, reduction: int | None, sealer: Sealer, how: Asynchronous
    ) -> tuple[bytes, Sequence[int]]:
        """Return this rank's bytes, and the sizes of those of all ranks, whose reductions have to be alike."""
        data, size = _pickle(obj, sealer, self.rank)
        own = [size] if reduction is None else [size, reduction]
        shared = _int64s(self.size * len(own))
        self.all_gather(shared, _int64s(len(own), own), **how).wait()
        if reduction is None:
            return data, shared
        check_alike(shared[1::2])
        return data, shared[::2]

    def _gather_all(self, data: bytes, sizes: Sequence[int], sealer: Sealer, how: Asynchronous) -> list[Any]:
        gathered = _room(sizes)
        self.all_gatherv(gathered, data, [abs(each) for each in sizes], **how).wait()
        return _unpickle(gathered, sizes, sealer)

    def send_object(
        self,
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
        self.isend_object(obj, dst, tag, backend=backend, timeout=timeout).wait()

    @_of_an_object
    def isend_object(
        self,
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
        how, is_sealed = self._carrier(backend, timeout)
        data, size = _pickle(obj, Sealer(b"", 0, 0), self.rank)
        if size < 0:
            raise InvalidType(data.decode())
        if dst == PROC_NULL:
            return ObjectOnItsWay(())
        backend = how["backend"]
        carrier = backend or self._choose("send", "int64", None, _SIZE_NBYTES)[0]
        data = self._object_seals.for_sending(is_sealed, carrier, dst, tag).seal(data, self.rank, dst)
        header = self.isend(_int64s(1, [len(data)]), dst, tag, backend=backend, timeout=timeout)
        return ObjectOnItsWay((header, self.isend(data, dst, tag, backend=backend, timeout=timeout)))

    @_of_an_object
    def recv_object(self, src: int, tag: int = 0, *, backend: str | None = None, timeout: float | None = None) -> Any:
        """Return an object that a rank sent by `send_object`; None from `PROC_NULL`.

        Raises:
            AuthenticationError: as of `all_gather_object`.
        """
        how, is_sealed = self._carrier(backend, timeout)
        if src == PROC_NULL:
            return None
        backend = how["backend"]
        sizes = _int64s(1)
        self.irecv(sizes, src, tag, backend=backend, timeout=timeout).wait()
        carrier = backend or self._choose("recv", "int64", None, _SIZE_NBYTES)[0]
        sealer = self._object_seals.for_receiving(is_sealed, carrier, src, tag)
        received = _room(sizes)
        self.irecv(received, src, tag, backend=backend, timeout=timeout).wait()
        return _unpickle(received, sizes, sealer, sender=src, receiver=self.rank)[0]


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
