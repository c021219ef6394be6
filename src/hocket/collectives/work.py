"""Sums of several operations in flight."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.comm.steps import Pending, StepsInOrder


class SumWork:
    """A sparse or compressed sum in flight.

    Examples:
        >>> x = np.array([3.0, 1.0, 0.0, -2.0], np.float32)
        >>> work = comm.sparse_all_reduce(x, k=2, dense="never", async_op=True)
        >>> work.wait().values, x
        (array([ 6., -4.], dtype=float32), array([ 6.,  0.,  0., -4.], dtype=float32))
    """

    def __init__(self, pending: Pending, found: Callable[[], Any]) -> None:
        self._pending, self._found = pending, found

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the result, at most so many seconds: a `SparseSum` or `CompressedSum`.

        Raises:
            CommTimeout, PeerFailure, CollectiveMismatch, NotFinite: as for the method of the communicator.
        """
        self._pending.wait(timeout=timeout)
        return self._found()


def carry_out(in_order: StepsInOrder, steps: Generator[Pending, None, Any], timeout_s: float, async_op: bool) -> Any:
    """Return what steps return, or a work that does.

    Args:
        in_order: runs the steps of the communicator.
        steps: of a sum.
        timeout_s: timeout of each of their waits, in seconds.
        async_op: whether to return at once.
    """
    found: list[Any] = []

    def all_steps() -> Generator[Pending, None, None]:
        found.append((yield from steps))

    if async_op:
        return SumWork(in_order.start(all_steps(), timeout_s), partial(found.__getitem__, 0))
    in_order.run(all_steps(), timeout_s)
    return found[0]
