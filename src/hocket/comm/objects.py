"""Operations on Python objects: pickled, their sizes exchanged, and sent as bytes with counts.

Only between ranks that trust each other: unpickling runs what the sender put in. An object that cannot be pickled on
one rank is an error on every rank that would have received something of it, and none of them hangs.
"""

from __future__ import annotations

import itertools
import pickle
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hocket import _native
from hocket.errors import InvalidArgument, InvalidState, InvalidType

if TYPE_CHECKING:
    from hocket._native import Asynchronous
    from hocket.comm.fabric import Fabric

_SIZE_NBYTES = 8


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

    def _asynchronous(self, backend: str | None, timeout: float | None) -> Asynchronous:
        """Each operation is waited for by itself, also inside of ``comm.coalesced()``."""
        virtual = self._fabric.virtual
        if virtual is not None and not virtual.moves_data:
            raise InvalidState("objects cannot travel where no data is moved; simulate with moves_data=True")
        return {"async_op": True, "backend": backend, "timeout": timeout}

    def all_gather_object(self, obj: Any, *, backend: str | None = None, timeout: float | None = None) -> list[Any]:
        """Return the objects of all ranks, by rank.

        Raises:
            InvalidType: the object of some rank cannot be pickled; on all ranks.
        """
        how = self._asynchronous(backend, timeout)
        data, sizes = self._share_sizes(obj, how)
        return self._gather_all(data, sizes, how)

    def gather_object(
        self, obj: Any, root: int, *, backend: str | None = None, timeout: float | None = None
    ) -> list[Any] | None:
        """Return the objects of all ranks, by rank, on the root; None on the others.

        Raises:
            InvalidType: the object of some rank cannot be pickled; on all ranks.
        """
        how = self._asynchronous(backend, timeout)
        data, sizes = self._share_sizes(obj, how)
        if min(sizes) < 0:  # everyone learns why
            return self._gather_all(data, sizes, how)
        gathered = bytearray(sum(sizes) if self.rank == root else 0)
        self.gatherv(gathered if self.rank == root else None, data, list(sizes), root, **how).wait()
        return _unpickle(gathered, sizes) if self.rank == root else None

    def broadcast_object(self, obj: Any, root: int, *, backend: str | None = None, timeout: float | None = None) -> Any:
        """Return the root's object, on every rank; what the others pass is not looked at.

        Raises:
            InvalidType: the object cannot be pickled; on all ranks.
        """
        how = self._asynchronous(backend, timeout)
        data, size = _pickle(obj) if self.rank == root else (b"", 0)
        sizes = _int64s(1, [size])
        self.broadcast(sizes, root, **how).wait()
        received = bytearray(data) if self.rank == root else bytearray(abs(sizes[0]))
        self.broadcast(received, root, **how).wait()
        if self.rank == root and size >= 0:
            return obj
        return _unpickle(received, sizes, sender=root)[0]

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
        """
        how = self._asynchronous(backend, timeout)
        is_root = self.rank == root
        pickled = _pickle_each(objs, self.size) if is_root else []
        sizes = _int64s(self.size, [size for _, size in pickled])
        self.broadcast(sizes, root, **how).wait()
        counts = [abs(each) for each in sizes]
        given = b"".join(data for data, _ in pickled)
        if min(sizes) < 0:
            everything = bytearray(given) if is_root else bytearray(sum(counts))
            self.broadcast(everything, root, **how).wait()
            return _unpickle(everything, sizes, sender=root)
        received = bytearray(counts[self.rank])
        self.scatterv(received, given if is_root else None, counts, root, **how).wait()
        return _unpickle(received, [sizes[self.rank]])[0]

    def all_to_all_object(
        self, objs: Sequence[Any], *, backend: str | None = None, timeout: float | None = None
    ) -> list[Any]:
        """Send object r to rank r, and return what came from every rank, by rank.

        Raises:
            InvalidArgument: there are more or fewer objects than ranks; before anything is sent.
            InvalidType: one of some rank cannot be pickled; on all ranks that it, or another one of that rank, goes to.
        """
        how = self._asynchronous(backend, timeout)
        pickled = _pickle_each(objs, self.size)
        failures = [each for each in pickled if each[1] < 0]
        if failures:  # nobody gets a part of what cannot be sent as a whole
            pickled = [failures[0]] * self.size
        in_sizes, out_sizes = _int64s(self.size, [size for _, size in pickled]), _int64s(self.size)
        self.all_to_all(out_sizes, in_sizes, **how).wait()
        received = bytearray(sum(map(abs, out_sizes)))
        self.all_to_allv(
            received,
            b"".join(data for data, _ in pickled),
            [abs(each) for each in out_sizes],
            [abs(each) for each in in_sizes],
            **how,
        ).wait()
        return _unpickle(received, out_sizes)

    def _share_sizes(self, obj: Any, how: Asynchronous) -> tuple[bytes, Any]:
        """Return this rank's bytes, and the sizes of those of all ranks."""
        data, size = _pickle(obj)
        sizes = _int64s(self.size)
        self.all_gather(sizes, _int64s(1, [size]), **how).wait()
        return data, sizes

    def _gather_all(self, data: bytes, sizes: Sequence[int], how: Asynchronous) -> list[Any]:
        gathered = bytearray(sum(map(abs, sizes)))
        self.all_gatherv(gathered, data, [abs(each) for each in sizes], **how).wait()
        return _unpickle(gathered, sizes)

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
        data, size = _pickle(obj)
        if size < 0:
            raise InvalidType(data.decode())
        header = self.isend(_int64s(1, [size]), dst, tag, backend=backend, timeout=timeout)
        return ObjectOnItsWay((header, self.isend(data, dst, tag, backend=backend, timeout=timeout)))

    def recv_object(self, src: int, tag: int = 0, *, backend: str | None = None, timeout: float | None = None) -> Any:
        """Return an object that a rank sent by `send_object`."""
        sizes = _int64s(1)
        self.irecv(sizes, src, tag, backend=backend, timeout=timeout).wait()
        received = bytearray(sizes[0])
        self.irecv(received, src, tag, backend=backend, timeout=timeout).wait()
        return _unpickle(received, sizes)[0]


def _int64s(count: int, values: Sequence[int] = ()) -> Any:
    return array("q", values) if values else array("q", bytes(_SIZE_NBYTES * count))


def _pickle(obj: Any) -> tuple[bytes, int]:
    """Return the object's bytes and their number; or why there are none, and the number of bytes of that, negative."""
    try:
        data = pickle.dumps(obj, protocol=5)
    except Exception as error:  # whatever a class of the user's raises
        reason = f"{type(obj).__name__} cannot be pickled: {type(error).__name__}: {error}".encode()
        return reason, -len(reason)
    return data, len(data)


def _pickle_each(objs: Sequence[Any] | None, size: int) -> list[tuple[bytes, int]]:
    if objs is None or len(objs) != size:
        given = "None" if objs is None else f"{len(objs)} objects"
        raise InvalidArgument(f"objs must hold one object for each of the {size} ranks, not {given}")
    return [_pickle(obj) for obj in objs]


def _unpickle(data: bytearray, sizes: Sequence[int], sender: int | None = None) -> list[Any]:
    """Return the objects that lie one behind the other; InvalidType if a rank sent why it has none.

    Args:
        data: from all ranks, or from one.
        sizes: of the objects.
        sender: the one; None: object r is of rank r.
    """
    ends = list(itertools.accumulate(map(abs, sizes), initial=0))
    view = memoryview(data)
    for rank, size in enumerate(sizes):
        if size < 0:
            reason = bytes(view[ends[rank] : ends[rank + 1]]).decode()
            raise InvalidType(f"rank {rank if sender is None else sender}: its {reason}")
    return [pickle.loads(view[begin:end]) for begin, end in itertools.pairwise(ends)]
