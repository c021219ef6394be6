"""Messages as values, for `Communicator.batch`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from hocket import _native
from hocket.errors import InvalidArgument, InvalidType

PROC_NULL: int = _native.PROC_NULL
"""The rank of nobody: messages to and from it are over at once, and what they would be received into stays as it is.

For grids, whose ranks at an edge have no neighbour there.

Example:
    >>> comm.sendrecv(row, up if up >= 0 else hk.PROC_NULL, halo, down if down < comm.size else hk.PROC_NULL)

Reference: MPI 4.1, section 3.10.
"""


_LOOK_S, _SOON_S = 50e-6, 2e-3  # between looks for a message: at first, and after a while


@dataclass(frozen=True, eq=False)
class Send:
    """A message from this rank.

    Args:
        x: array to send.
        dst: rank that receives it, or `PROC_NULL`.
        tag: by which the receiver tells it from others.
    """

    x: Any
    dst: int
    tag: int = 0


@dataclass(frozen=True, eq=False)
class Recv:
    """A message to this rank.

    Args:
        x: array that it is received into.
        src: rank that sends it, or `PROC_NULL`.
        tag: that it was sent with.
    """

    x: Any
    src: int
    tag: int = 0


def listed(name: str, items: str, given: object) -> list[Any]:
    """Return what a caller gave for several things, such as the messages of `batch`.

    Args:
        name: of the argument.
        items: what each of them is, in the plural.
        given: the argument.

    Raises:
        InvalidType: it is one thing.
    """
    try:
        each = iter(given)  # type: ignore[call-overload]
    except TypeError:
        raise InvalidType(f"{name} must be a sequence of {items}, not one {type(given).__name__}") from None
    return list(each)  # whose own errors are the caller's


def wait_for_sender(find: Callable[[int], int | None], tag: int, timeout: float) -> int | None:
    """Return a rank of which a message has come, as soon as `find` knows one; None if that takes too long.

    Args:
        find: of a tag, returns such a rank if there is one now.
        tag: of the message.
        timeout: seconds, 0 or more.
    """
    if not isinstance(timeout, Real) or not 0 <= timeout < float("inf"):
        raise InvalidArgument(f"timeout must be a number of seconds, zero or more, not {timeout!r}")
    begin = time.monotonic()
    while (sender := find(tag)) is None:
        waited = time.monotonic() - begin
        if waited >= timeout:
            return None
        time.sleep(_LOOK_S if waited < _SOON_S else _SOON_S)
    return sender


def batch(
    comm: _native.Communicator,
    messages: Iterable[Send | Recv],
    *,
    backend: str | None = None,
    timeout: float | None = None,
) -> list[_native.Work]:
    """Issue several messages, or none of them if an argument of one is wrong.

    Args:
        messages: to send and to receive, in the order in which they are to be matched.
        backend, timeout: as of `isend`.

    Returns:
        Their works, in the same order; no order of waiting for them can hang.

    Raises:
        InvalidType: one is neither `Send` nor `Recv`, or holds no array.
        InvalidArgument: a rank or tag is out of range.
    """
    given = []
    for message in listed("messages", "hocket.Send and hocket.Recv", messages):
        if isinstance(message, Send):
            given.append(("send", message.x, message.dst, message.tag))
        elif isinstance(message, Recv):
            given.append(("recv", message.x, message.src, message.tag))
        else:
            raise InvalidType(f"messages must be hocket.Send and hocket.Recv, not {message!r}")
    return comm._batch(given, backend=backend, timeout=timeout)
