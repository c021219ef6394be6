"""How many messages may be in flight before a sender blocks, and in which order they are received."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hocket.errors import InvalidArgument


@dataclass(frozen=True)
class Buffering:
    """The buffers between sends and receives.

    Args:
        slots: messages in flight per channel; 0: a send ends with its receive (rendezvous); None: unlimited.
        tagged: whether every edge between two stages of a pipe is a separate channel, in each direction. If not, each
            pair of ranks has one channel per direction, with messages received in the order of their sends.

    Examples:
        >>> str(hk.pipeline.Buffering(slots=2, tagged=False))
        'fifo:2'
        >>> hk.pipeline.Buffering.parse("rendezvous").slots
        0
    """

    slots: int | None = None
    tagged: bool = True

    @classmethod
    def parse(cls, text: str | int | Buffering) -> Buffering:
        """Parse "tagged", "fifo", "tagged:2", "fifo:1" or "rendezvous"; a number means that many tagged slots."""
        if isinstance(text, Buffering):
            return text
        if text == "rendezvous":
            return cls(0)
        match = re.fullmatch(r"(?:(tagged|fifo)(?::(?=\d))?)?(\d+)?", str(text))
        if match is None or not any(match.groups()):
            raise InvalidArgument(
                f'buffering must be "tagged", "fifo", "tagged:2", "fifo:1" or "rendezvous", got {text!r}'
            )
        return cls(int(match[2]) if match[2] else None, match[1] != "fifo")

    def __str__(self) -> str:
        if self.slots == 0:
            return "rendezvous"
        name = "tagged" if self.tagged else "fifo"
        return name if self.slots is None else f"{name}:{self.slots}"


TAGGED = Buffering()
