"""A lane for operations that a library does not have."""

from __future__ import annotations

from collections.abc import Callable

from hocket import _native
from hocket.backends.base import Lane
from hocket.errors import UnsupportedDtype


class RefusingLane(Lane):
    """A lane that refuses all operations.

    Args:
        size: number of ranks of the communicator.
        reason: reason of the refusal; ``{kind}`` in it is replaced by the kind of the operation.
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
        raise UnsupportedDtype(f"{token!r} cannot be tested: this lane carries no operations")
