"""Operations that all ranks issue in one order, although their tensors are complete in another."""

from __future__ import annotations

from collections.abc import Callable


class InOrder:
    """Calls a function for each of some numbers, in a fixed order, as soon as each and all before it are ready.

    The backward passes of ranks need not compute gradients in the same order, but operations on a communicator must be
    issued in one order by all ranks.

    Args:
        order: the numbers in the order of the calls.
        call: called with a number.
    """

    def __init__(self, order: list[int], call: Callable[[int], None]) -> None:
        self._order = order
        self._call = call
        self._ready: set[int] = set()
        self._num_called = 0

    def ready(self, number: int) -> None:
        """Mark a number as ready."""
        self._ready.add(number)
        while self._num_called < len(self._order) and self._order[self._num_called] in self._ready:
            number = self._order[self._num_called]
            self._num_called += 1
            self._call(number)

    def reset(self) -> None:
        """Begin again."""
        self._ready.clear()
        self._num_called = 0
