"""What benchmarks ask of a library: operations, bound to their arguments, as thin as the library allows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from hocket.errors import InvalidArgument, InvalidType, UnsupportedDtype

Call = Callable[[], Any]
Binder = Callable[..., Call]

APIS = ("buffer", "pickle", "pickle5", "dlpack")
"""How data are handed to a library: as memory, as pickled objects, as pickled objects whose memory travels apart, as
DLPack capsules."""


class Driver(ABC):
    """A library on this rank, called directly.

    Operations on memory have the arguments of `hocket.comm.Communicator`'s methods, in their order: ``all_gather(out,
    x)``, ``reduce(x, root, op)``, ``gatherv(out, x, counts, root)``; ``isend`` and ``irecv`` return what `wait` takes.

    Operations on objects take what this rank gives, and return what it gets: ``send(obj, peer)``, ``recv(peer)``,
    ``irecv(nbytes, peer)`` of so many at most when pickled, ``broadcast(obj)``, ``gather(obj)`` and ``scatter(objs)``
    of root 0, ``all_reduce(obj, add)``.

    Attributes:
        name: by which it is chosen.
        rank, size: of the job.
        refusals: errors by which the library says that it has not got something.
        reduces_to_start: whether a reduce_scatter in place leaves a rank's part at the beginning of its array; it is
            where that part was otherwise.

    The form of an operation that is not its natural one has another name: "all_reduce out-of-place" is called as
    ``(out, x, op)``, "all_gather in-place" as ``(out, x)`` where x is the rank's own part of out.
    """

    name: str
    refusals: tuple[type[Exception], ...] = (InvalidArgument, UnsupportedDtype, InvalidType)
    rank: int
    size: int
    reduces_to_start: bool = False
    _binders: Mapping[str, Mapping[str, Binder]]

    def binders(self, api: str) -> Mapping[str, Binder]:
        """Return what binds each operation by an API; operations that it lacks are not there."""
        return self._binders[api]

    @abstractmethod
    def barrier(self) -> object:
        """Wait for all ranks."""

    def wait(self, requests: Sequence[Any]) -> object:
        """Wait for operations on memory that were begun."""
        for each in requests:
            each.wait()
        return None

    def wait_objects(self, requests: Sequence[Any]) -> list[Any]:
        """Wait for messages of objects that were begun; return those that were received, and None for the others."""
        return [each.wait() for each in requests]

    @abstractmethod
    def share(self, obj: Any) -> list[Any]:
        """Return every rank's object, by rank."""

    def begin(self, op: str, *arguments: Any) -> Call:
        """Return what begins a collective on memory, and returns what `wait` takes.

        Raises:
            InvalidArgument: the library has no such form of it.
        """
        raise InvalidArgument(f"{self.name} begins no {op} that it ends later")

    def prepare(self, op: str, *arguments: Any) -> Call:
        """Return an operation on memory whose arguments are read once, a persistent one; a call begins and ends it.

        Raises:
            InvalidArgument: the library has no such form of it.
        """
        raise InvalidArgument(f"{self.name} has no persistent {op}")

    def shared(self, count: int, dtype: str) -> Any:
        """Return a NumPy array in memory that the ranks of a host share.

        Raises:
            InvalidArgument: the library has no such memory.
        """
        raise InvalidArgument(f"{self.name} has no symmetric memory; hocket's backends have")

    def finalize(self) -> None:  # noqa: B027 - most have nothing to do
        """Leave the job."""

    def bind(self, api: str, op: str, *arguments: Any, **options: Any) -> Call:
        """Bind an operation.

        Raises:
            InvalidArgument: the library has no such operation by this API.
        """
        binders = self.binders(api)
        if op not in binders:
            have = ", ".join(each for each in binders if " " not in each) or "none"
            among = "" if op.partition(" ")[0] in binders else f"; by {api} it has {have}"
            raise InvalidArgument(f"{self.name} has no {op} by {api}{among}")
        return binders[op](*arguments, **options)


def folded(gather: Callable[[Any], Any], obj: Any, add: Callable[[Any, Any], Any]) -> Any:
    """Gather all ranks' objects, and add them up where they come: of a library that reduces no objects."""
    found = gather(obj)
    return None if found is None else reduce(add, found)
