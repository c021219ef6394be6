"""Loops that are timed: each contains its iterations, so that a short call is not timed with one more Python call.

What they call is bound beforehand, by `functools.partial` at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

Call = Callable[[], object]
Loop = Callable[[int], object]


def looped(call: Call) -> Loop:
    """A call, again and again."""

    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            call()

    return run


def in_turn(first: Call, second: Call) -> Loop:
    """Two calls, one after the other."""

    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            first()
            second()

    return run


def in_order(calls: Sequence[Call]) -> Loop:
    """Many calls, one after the other."""

    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            for call in calls:
                call()

    return run


def begun(begin: Callable[[], Any], wait: Callable[[Any], object]) -> Loop:
    """An operation that is begun and at once waited for."""

    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            wait(begin())

    return run


def there_and_back(rank: int, send: Call, receive: Call, wait: Callable[[Any], object] | None = None) -> Loop:
    """A message from rank 0 to the other one, and one back.

    Args:
        rank: of this process, 0 or 1.
        send, receive: bound to the other rank.
        wait: for what they begin; None: they return when the message is there.
    """
    first, second = (send, receive) if rank == 0 else (receive, send)

    def run(iterations: int) -> None:
        assert wait is not None
        for _ in repeat(None, iterations):
            wait(first())
            wait(second())

    return in_turn(first, second) if wait is None else run


def nothing(iterations: int) -> None:
    """What a rank does while others work."""
