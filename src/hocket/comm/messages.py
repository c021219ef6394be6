"""Messages as values, and the methods of a communicator that use or wait for messages: `batch` and `probe`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

from hocket import _native
from hocket.errors import InvalidArgument, InvalidState, InvalidType

PROC_NULL: int = _native.PROC_NULL
"""The rank that does not exist: a message to or from it completes at once, and the receiving array is not changed.

Use it in grids, where a rank at an edge has no neighbour on that side.

Examples:
    >>> comm.sendrecv(row, up if up >= 0 else hk.PROC_NULL, halo, down if down < comm.size else hk.PROC_NULL)

Reference: MPI 4.1, section 3.10.
"""


_FIRST_PAUSE_S, _LATER_PAUSE_S = 50e-6, 2e-3  # between two polls for a message


@dataclass(frozen=True, eq=False)
class Send:
    """A message from this rank, for `Communicator.batch`.

    Args:
        x: array to send.
        dst: rank that receives it, or `PROC_NULL`.
        tag: number that the receiver must name to get this message.

    Examples:
        >>> other = 1 - comm.rank
        >>> works = comm.batch([hk.Send(np.ones(2), other), hk.Recv(received := np.zeros(2), other)])
        >>> hk.wait_all(works)
        >>> received
        array([1., 1.])
    """

    x: Any
    dst: int
    tag: int = 0


@dataclass(frozen=True, eq=False)
class Recv:
    """A message to this rank, for `Communicator.batch`.

    Args:
        x: array that receives it.
        src: rank that sends it, or `PROC_NULL`.
        tag: tag that it is sent with.

    Examples:
        >>> x = np.zeros(2)
        >>> hk.wait_all(comm.batch([hk.Recv(x, hk.PROC_NULL)]))  # from no rank: x is not changed
        >>> x
        array([0., 0.])
    """

    x: Any
    src: int
    tag: int = 0


def as_list(name: str, items: str, given: object) -> list[Any]:
    """Return an argument that holds several items as a list, e.g. the messages of `batch`.

    Args:
        name: name of the argument, for the error.
        items: what the items are, in the plural.
        given: value of the argument.

    Raises:
        InvalidType: the value is not iterable.
    """
    try:
        each = iter(given)  # type: ignore[call-overload]
    except TypeError:
        raise InvalidType(f"{name} must be a sequence of {items}, not one {type(given).__name__}") from None
    return list(each)  # an error of the caller's iterator is raised as it is


class Probes(Protocol):
    """What `probe` needs of a communicator."""

    @property
    def _names(self) -> Sequence[str]: ...
    @property
    def num_hosts(self) -> int: ...
    def _find_sender(self, tag: int) -> int | None: ...


def probe(comm: Probes, tag: int = 0, timeout: float = 0.0) -> int | None:
    """Return a rank whose message with this tag has arrived and is not received yet, or None.

    Works over shared memory only.

    Args:
        tag: tag of the message.
        timeout: seconds to wait for such a message.

    Raises:
        InvalidState: the ranks are on several hosts.
        InvalidArgument: the timeout is not a number of seconds.

    Examples:
        >>> other = 1 - comm.rank
        >>> work = comm.isend(np.ones(2), other, tag=3)
        >>> comm.probe(tag=3, timeout=5.0) == other
        True
        >>> comm.recv(np.zeros(2), other, tag=3)
        >>> work.wait()
    """
    if comm._names[0] != "shm":
        raise InvalidState(f"probe() reads shared memory, but the ranks are on {comm.num_hosts} hosts")
    if not isinstance(timeout, Real) or not 0 <= timeout < float("inf"):
        raise InvalidArgument(f"timeout must be a number of seconds, zero or more, not {timeout!r}")
    begin = time.monotonic()
    while (sender := comm._find_sender(tag)) is None:
        waited_s = time.monotonic() - begin
        if waited_s >= timeout:
            return None
        time.sleep(_FIRST_PAUSE_S if waited_s < _LATER_PAUSE_S else _LATER_PAUSE_S)
    return sender


def batch(
    comm: _native.Communicator,
    messages: Iterable[Send | Recv],
    *,
    backend: str | None = None,
    timeout: float | None = None,
) -> list[_native.Work]:
    """Issue several messages; if an argument of one is wrong, none is issued.

    Args:
        messages: messages to send and to receive, in the order in which they are matched.
        backend, timeout: as for `isend`.

    Returns:
        Their works, in the same order. You can wait for them in any order.

    Raises:
        InvalidType: a message is neither `Send` nor `Recv`, or does not hold an array.
        InvalidArgument: a rank or tag is out of range.

    Examples:
        >>> left = right = 1 - comm.rank  # a ring of two ranks
        >>> from_left, from_right = np.zeros(1), np.zeros(1)
        >>> works = comm.batch([
        ...     hk.Send(np.array([1.0]), right, tag=1), hk.Recv(from_left, left, tag=1),
        ...     hk.Send(np.array([2.0]), left, tag=2), hk.Recv(from_right, right, tag=2),
        ... ])
        >>> hk.wait_all(works)
        >>> from_left, from_right
        (array([1.]), array([2.]))
    """
    given = []
    for message in as_list("messages", "hocket.Send and hocket.Recv", messages):
        if isinstance(message, Send):
            given.append(("send", message.x, message.dst, message.tag))
        elif isinstance(message, Recv):
            given.append(("recv", message.x, message.src, message.tag))
        else:
            raise InvalidType(f"messages must be hocket.Send and hocket.Recv, not {message!r}")
    return comm._batch(given, backend=backend, timeout=timeout)
