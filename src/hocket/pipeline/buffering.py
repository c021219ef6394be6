"""How many messages may be on their way before their sender has to wait, and in which order they can be taken."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hocket.errors import InvalidArgument


@dataclass(frozen=True)
class Buffering:
    """What lies between a send and its receive.

    Args:
        slots: messages of a channel that may be on their way; 0: a send ends with its receive; None: as many as come.
        tagged: every edge between two stages of a pipe is a channel of its own, in each direction; otherwise all that
            one rank sends to another is one channel, whose messages come out in the order in which they were sent.
    """

    slots: int | None = None
    tagged: bool = True

    @classmethod
    def parse(cls, text: str | int | Buffering) -> Buffering:
        """Read "tagged", "fifo", "tagged:2", "fifo:1" or "rendezvous"; a number is so many slots, tagged."""
        if isinstance(text, Buffering):
            return text
        if text == "rendezvous":
            return cls(0)
        match = re.fullmatch(r"(?:(tagged|fifo)(?::(?=\d))?)?(\d+)?", str(text))
        if match is None or not any(match.groups()):
            raise InvalidArgument(f'buffering is "tagged", "fifo", "tagged:2", "fifo:1" or "rendezvous", not {text!r}')
        return cls(int(match[2]) if match[2] else None, match[1] != "fifo")

    def __str__(self) -> str:
        if self.slots == 0:
            return "rendezvous"
        name = "tagged" if self.tagged else "fifo"
        return name if self.slots is None else f"{name}:{self.slots}"


TAGGED = Buffering()
