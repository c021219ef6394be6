"""The interface of a library to benchmarks: operations bound to their arguments, with little overhead."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from hocket.errors import InvalidArgument, InvalidType, UnsupportedDtype

Call = Callable[[], Any]
Binder = Callable[..., Call]

APIS = ("buffer", "pickle", "pickle5", "dlpack")
"""How data are passed to a library: as memory, as pickled objects, as pickled objects with out-of-band buffers, or as
DLPack capsules."""


class Driver(ABC):
    """A library on this rank, called directly.

    Operations on memory have the arguments of `hocket.comm.Communicator`'s methods, in the same order:
    ``all_gather(out, x)``, ``reduce(x, root, op)``, ``gatherv(out, x, counts, root)``. ``isend`` and ``irecv`` return
    requests for `wait`.

    Operations on objects take the object that this rank sends and return the object that it receives:
    ``send(obj, peer)``, ``recv(peer)``, ``irecv(nbytes, peer)``, ``broadcast(obj)``, ``gather(obj)``,
    ``scatter(objs)``, ``all_reduce(obj, add)``. The root is rank 0; ``nbytes`` is the maximum size when pickled.

    Attributes:
        name: the name by which users choose it.
        rank, size: this process's rank in the job, and the number of ranks.
        refusals: errors that the library raises for operations that it does not support.
        reduces_to_start: whether an in-place reduce_scatter writes a rank's part to the beginning of its array;
            otherwise the part stays at its place in the array.

    Each operation has a natural form, in place or out of place. The other form has another name: "all_reduce
    out-of-place" is called as ``(out, x, op)``, "all_gather in-place" as ``(out, x)`` where x is the rank's own part of
    out.
    """

    name: str
    refusals: tuple[type[Exception], ...] = (InvalidArgument, UnsupportedDtype, InvalidType)
    rank: int
    size: int
    reduces_to_start: bool = False
    _binders: Mapping[str, Mapping[str, Binder]]

    def binders(self, api: str) -> Mapping[str, Binder]:
        """Return, by operation, the functions that bind it for an API; unsupported operations are missing."""
        return self._binders[api]

    @abstractmethod
    def barrier(self) -> object:
        """Wait for all ranks."""

    def wait(self, requests: Sequence[Any]) -> object:
        """Wait for operations on memory that were started."""
        for each in requests:
            each.wait()
        return None

    def wait_objects(self, requests: Sequence[Any]) -> list[Any]:
        """Wait for messages of objects that were started; return the received objects, and None for the sent ones."""
        return [each.wait() for each in requests]

    @abstractmethod
    def share(self, obj: Any) -> list[Any]:
        """Return every rank's object, by rank."""

    def begin(self, op: str, *arguments: Any) -> Call:
        """Return a function that starts a collective on memory and returns a request for `wait`.

        Raises:
            InvalidArgument: the library has no non-blocking form of it.
        """
        raise InvalidArgument(f"{self.name} has no non-blocking {op}")

    def prepare(self, op: str, *arguments: Any) -> Call:
        """Return a persistent operation on memory, whose arguments are read once; each call starts it and waits.

        Raises:
            InvalidArgument: the library has no persistent form of it.
        """
        raise InvalidArgument(f"{self.name} has no persistent {op}")

    def shared(self, count: int, dtype: str) -> Any:
        """Return a NumPy array in memory that the ranks of a host share.

        Raises:
            InvalidArgument: the library has no shared memory.
        """
        raise InvalidArgument(f"{self.name} has no symmetric memory: choose a backend of hocket")

    def finalize(self) -> None:  # noqa: B027 - most libraries need no finalization
        """Leave the job."""

    def bind(self, api: str, op: str, *arguments: Any, **options: Any) -> Call:
        """Return an operation bound to its arguments.

        Raises:
            InvalidArgument: the library does not support the operation with this API.
        """
        binders = self.binders(api)
        if op not in binders:
            known = ", ".join(each for each in binders if " " not in each) or "none"
            supported = "" if op.partition(" ")[0] in binders else f"; supported operations: {known}"
            raise InvalidArgument(f"{self.name} has no {op} with API {api}{supported}")
        return binders[op](*arguments, **options)


def gather_and_fold(gather: Callable[[Any], Any], obj: Any, add: Callable[[Any, Any], Any]) -> Any:
    """Gather the objects of all ranks and fold them: the reduction of a library that cannot reduce objects.

    Returns:
        The reduction; None if `gather` returns None because this rank receives no result.
    """
    gathered = gather(obj)
    return None if gathered is None else reduce(add, gathered)
