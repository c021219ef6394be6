"""A lane for what a library has not got."""

from __future__ import annotations

from collections.abc import Callable

from hocket import _native
from hocket.backends.base import Lane
from hocket.errors import UnsupportedDtype


class RefusingLane(Lane):
    """Carries nothing.

    Args:
        size: ranks of the communicator.
        reason: why; ``{kind}`` in it is the operation's.
        device: as `Lane.device`.
    """

    def __init__(self, size: int, reason: str, device: int | None = None) -> None:
        super().__init__(size)
        self.device = device
        self._reason = reason

    def refuses(self, kind: str, dtype: str, reduction: str | None) -> str:
        return self._reason.format(kind=kind)

    def post(self, operation: _native.LaneOperation, wake: Callable[[], None]) -> object:
        raise UnsupportedDtype(self.refuses(operation.kind, operation.dtype, operation.reduction))

    def test(self, token: object) -> bool:
        raise UnsupportedDtype(f"{token!r} is no operation of a library that has none")
