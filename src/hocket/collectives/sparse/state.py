"""What a rank keeps between the sparse sums of one array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VERSION = 1


class SparseState:
    """The residual of one array: what this rank has not sent yet. It is added to the array in the next sparse sum.

    Args:
        name: of the array, in errors.

    Attributes:
        residual: as many elements as the array; float32. None: nothing is left.
        num_steps: number of sums so far.
        num_dense_steps: number of those that were dense.

    Examples:
        >>> state = hk.SparseState()
        >>> x = np.array([3.0, 1.0, 0.0, 0.0], np.float32)
        >>> _ = comm.sparse_all_reduce(x, k=1, state=state, dense="never")
        >>> x, state.residual
        (array([6., 0., 0., 0.], dtype=float32), array([0., 1., 0., 0.], dtype=float32))
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.residual: NDArray[np.float32] | None = None
        self.num_steps = self.num_dense_steps = 0
        self._spare: NDArray[np.float32] | None = None
        self._settled: Any = None
        self._memory: dict[str, Any] = {}

    def check(self, size: int) -> None:
        """Check that the residual is that of an array of a size.

        Raises:
            InvalidArgument: it is not.
        """
        if self.residual is not None and len(self.residual) != size:
            raise InvalidArgument(
                f"the residual{self._of_name} has {len(self.residual)} elements, but the array {size}: "
                "each array needs a state of its own"
            )

    def scale(self, factor: float) -> None:
        """Multiply the residual: for example by new / old when the scale of a loss has changed.

        Raises:
            InvalidArgument: the factor is not finite, or not above 0.
        """
        if not 0 < factor < float("inf"):
            raise InvalidArgument(f"the factor of a residual must be a finite number above 0, not {factor!r}")
        if self.residual is not None:
            self.residual *= np.float32(factor)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what a checkpoint must hold; every rank has its own."""
        residual = None if self.residual is None else self.residual.copy()
        return {
            "version": _VERSION,
            "residual": residual,
            "num_steps": self.num_steps,
            "num_dense_steps": self.num_dense_steps,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over what `state_dict` has returned.

        Raises:
            InvalidType, InvalidArgument: it is not such a dictionary; then nothing has changed.
        """
        if not isinstance(saved, Mapping):
            raise InvalidType(f"a saved state must be a mapping, not {type(saved).__name__}")
        known = {"version", "residual", "num_steps", "num_dense_steps"}
        if set(saved) != known:
            raise InvalidArgument(f"a saved state must have {sorted(known)}, not {sorted(map(str, saved))}")
        if saved["version"] != _VERSION:
            raise InvalidArgument(f"the saved state has version {saved['version']!r}, but this is version {_VERSION}")
        for name in ("num_steps", "num_dense_steps"):
            if type(saved[name]) is not int or saved[name] < 0:
                raise InvalidArgument(f"{name} of a saved state must be an int of 0 or more, not {saved[name]!r}")
        residual = saved["residual"]
        if residual is not None:
            residual = np.array(residual)
            if residual.dtype != np.float32 or residual.ndim != 1 or not np.isfinite(residual).all():
                what = f"{residual.dtype} of shape {residual.shape}"
                raise InvalidArgument(f"a saved residual must be finite float32 of one dimension, not {what}")
            self.check_size_of(residual)
        self.residual = residual
        self.num_steps, self.num_dense_steps = saved["num_steps"], saved["num_dense_steps"]

    def check_size_of(self, residual: NDArray[np.float32]) -> None:
        """Check that a residual fits the array, if that is known.

        Raises:
            InvalidArgument: it does not.
        """
        if self.residual is not None and len(self.residual) != len(residual):
            raise InvalidArgument(
                f"the saved residual{self._of_name} has {len(residual)} elements, but the array {len(self.residual)}"
            )

    @property
    def _of_name(self) -> str:
        return f" of {self.name}" if self.name else ""
