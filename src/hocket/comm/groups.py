"""Methods of a communicator that make other communicators from it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Protocol, Self, TypeVar

from hocket.comm.identity import LARGEST_INT64, read_int64, read_members

_NO_COLOR = -1


class Divisible(Protocol):
    """What is needed of a communicator."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def _label(self) -> str: ...
    def _gather_for(self, kind: Any, out: Any, x: Any) -> None: ...
    def _count_split(self) -> int: ...
    def _count_group(self, members: tuple[int, ...]) -> int: ...
    def _child(self, ranks: list[int], label: str, *identity: object) -> Self: ...


_Communicator = TypeVar("_Communicator", bound=Divisible)


def split(comm: _Communicator, color: int | None, key: int = 0) -> _Communicator | None:
    """Divide the communicator by color; called by all members.

    Args:
        color: members with the same color (an int, 0 or more) form one new communicator. None: this rank joins no
            new communicator.
        key: order of the ranks in the new communicator. Ranks with equal keys keep their present order.

    Returns:
        The new communicator of this rank's color, or None.

    Raises:
        CommTimeout: a member did not call `split` in time.

    Examples:
        >>> half = comm.split(color=comm.rank % 2)  # two ranks, two colors: each rank is alone
        >>> half.size, half.rank
        (1, 0)
        >>> turned = comm.split(color=0, key=-comm.rank)  # one color, in reverse order
        >>> comm.all_gather_object(turned.rank)
        [1, 0]
    """
    rule = "color must be an int of 0 or more, or None"
    own_color = _NO_COLOR if color is None else read_int64(color, 0, rule)
    own_key = read_int64(key, -LARGEST_INT64, "key must be an int of 64 bits")
    requests = _gather_ints(comm, "split", (own_color, own_key))
    number = comm._count_split()  # not before: after a mismatch the counts of the members are still equal
    if color is None:
        return None
    ranks = [rank for rank in range(comm.size) if requests[rank][0] == own_color]
    ranks.sort(key=lambda rank: (requests[rank][1], rank))
    return comm._child(ranks, f"split {own_color} of {comm._label}", "split", number, own_color)


def dup(comm: _Communicator) -> _Communicator:
    """Make a communicator of the same members with its own issue order; called by all members.

    A library that communicates through its own duplicate cannot disturb the order of the program's operations.

    Examples:
        >>> with comm.dup() as own:
        ...     own.all_reduce_object(1)
        2
    """
    _gather_ints(comm, "dup", (0, 0))
    number = comm._count_split()
    return comm._child(list(range(comm.size)), f"dup of {comm._label}", "dup", number)


def group(comm: _Communicator, ranks: Sequence[int]) -> _Communicator:
    """Make a communicator of some members, in the given order; called only by these members.

    Args:
        ranks: ranks of this communicator, each once; the calling rank is one of them.

    Raises:
        InvalidArgument: a rank is out of range or given twice, or the calling rank is missing.
        CommTimeout: a member did not call `group` in time.

    Examples:
        >>> reverse = comm.group([1, 0])
        >>> comm.all_gather_object(reverse.rank)
        [1, 0]
    """
    members = read_members(ranks, comm.rank, comm.size)
    number = comm._count_group(tuple(members))
    return comm._child(members, f"group {members} of {comm._label}", "group", number, *members)


def _gather_ints(comm: Divisible, kind: str, values: tuple[int, int]) -> list[tuple[int, int]]:
    gathered = array("q", bytes(16 * comm.size))
    comm._gather_for(kind, gathered, array("q", values))
    return list(zip(gathered[::2], gathered[1::2], strict=True))
