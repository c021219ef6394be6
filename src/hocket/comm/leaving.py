"""How a communicator is left, and what becomes of failures that nobody waited for."""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import TYPE_CHECKING

from hocket import _native
from hocket.trace import logger

if TYPE_CHECKING:
    from hocket.comm.communicator import Communicator


def leave(comm: Communicator, drain_timeout_s: float, is_child: bool = False) -> BaseException | None:
    """Leave a communicator and those made from it.

    Args:
        comm: to be left.
        drain_timeout_s: how long operations in flight have to come to their end; 0: the program fails anyway.
        is_child: whether one that it was made from is being left.

    Returns:
        What the first asynchronous operation failed with, if the program was told of no failure.
    """
    unseen = [leave(child, drain_timeout_s, True) for child in list(comm._children)]
    was_open = not comm._closed
    failure, unreceived = comm._close(drain_timeout_s)
    unseen.append(failure)
    comm._on_turn = None
    if was_open:
        logger.debug("left %s", comm._label)
        for library in comm._fabric.libraries:
            library.close_lanes(comm._key)
    if comm._on_finalize is not None:
        unseen.append(_native.take_unseen())  # of communicators that the program dropped
    # Another thread may finalize at the same time.
    on_finalize, comm._on_finalize = comm._on_finalize, None
    first = next((error for error in unseen if error is not None), None)
    if first is not None and not is_child:
        if comm._fabric.has_raised():
            first = None
        elif comm._on_failure is not None:
            comm._on_failure(comm, first)
    if on_finalize is not None:
        on_finalize()
    if unreceived:  # at last, as a warning may be turned into an error
        _warn_at_the_users_line(f"hocket: rank {comm.rank} of {comm._label} never received what {unreceived}")
    return first


def _warn_at_the_users_line(text: str) -> None:
    frame: FrameType | None = sys._getframe()
    level = 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "hocket":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level + 1)


def tell(unseen: BaseException) -> None:
    """Raise a failure that nobody waited for; where the program handles another error, that one gets a note."""
    handled = sys.exception()
    if handled is None:
        raise unseen
    handled.add_note(f"hocket: {type(unseen).__name__}: {unseen}")
