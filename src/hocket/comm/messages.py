"""Messages as values, for `Communicator.batch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Send:
    """A message from this rank.

    Args:
        x: array to send.
        dst: rank that receives it.
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
        src: rank that sends it.
        tag: that it was sent with.
    """

    x: Any
    src: int
    tag: int = 0
