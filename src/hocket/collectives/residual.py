"""What a rank keeps between the compressed sums of one array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VERSION = 1
_COUNTS = ("num_steps", "num_dense_steps")
_ELEMENTWISE = ("residual", "momentum")


class ResidualState:
    """The residual of one array: what this rank has not sent yet. It is added to the array in the next sum.

    Args:
        name: of the array, in errors.

    Attributes:
        residual: as many elements as the array; float32. None: nothing is left.
        momentum: that of deep gradient compression, likewise.
        factors: of PowerSGD: the right factor of each tensor, by its number.
        num_steps: number of sums so far.
        num_dense_steps: number of those that were dense.

    Examples:
        >>> state = hk.ResidualState()
        >>> x = np.array([3.0, 1.0, 0.0, 0.0], np.float32)
        >>> _ = comm.sparse_all_reduce(x, k=1, state=state, dense="never")
        >>> x, state.residual
        (array([6., 0., 0., 0.], dtype=float32), array([0., 1., 0., 0.], dtype=float32))
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.residual: NDArray[np.float32] | None = None
        self.momentum: NDArray[np.float32] | None = None
        self.factors: dict[int, NDArray[np.float32]] = {}
        self.num_steps = self.num_dense_steps = 0
        self._before: tuple[NDArray[np.float32] | None, NDArray[np.float32] | None] | None = None
        self._spare: NDArray[np.float32] | None = None
        self._settled: Any = None
        self._memory: dict[str, Any] = {}

    def check(self, size: int) -> None:
        """Check that the residual is that of an array of a size.

        Raises:
            InvalidArgument: it is not.
        """
        for what in _ELEMENTWISE:
            kept = getattr(self, what)
            if kept is not None and len(kept) != size:
                raise InvalidArgument(
                    f"the {what}{self._of_name} has {len(kept)} elements, but the array {size}: "
                    "each array needs a state of its own"
                )

    def scale(self, factor: float) -> None:
        """Multiply residual and momentum: for example by new / old when the scale of a loss has changed.

        Raises:
            InvalidArgument: the factor is not finite, or not above 0.
        """
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < float("inf"):
            raise InvalidArgument(f"the factor of a residual must be a finite number above 0, not {factor!r}")
        for what in _ELEMENTWISE:
            kept = getattr(self, what)
            if kept is not None:
                kept *= np.float32(factor)

    def remember(self) -> None:
        """Keep copies of residual and momentum, for `undo`."""
        self._before = tuple(None if each is None else each.copy() for each in (self.residual, self.momentum))  # type: ignore[assignment]

    def undo(self) -> None:
        """Take residual and momentum back that `remember` has kept: the sum since then is thrown away."""
        if self._before is not None:
            self.residual, self.momentum = self._before
            self._before = None

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what a checkpoint must hold; every rank has its own."""
        kept = {what: None if (each := getattr(self, what)) is None else each.copy() for what in _ELEMENTWISE}
        factors = {number: each.copy() for number, each in self.factors.items()}
        return {"version": _VERSION, **kept, "factors": factors, **{what: getattr(self, what) for what in _COUNTS}}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over what `state_dict` has returned.

        Raises:
            InvalidType, InvalidArgument: it is not such a dictionary; then nothing has changed.
        """
        check_saved(saved, "a saved state", _VERSION, (*_ELEMENTWISE, "factors", *_COUNTS))
        for name in _COUNTS:
            if type(saved[name]) is not int or saved[name] < 0:
                raise InvalidArgument(f"{name} of a saved state must be an int of 0 or more, not {saved[name]!r}")
        kept = {what: _checked(saved[what], what, 1) for what in _ELEMENTWISE if saved[what] is not None}
        for what, array in kept.items():
            self._check_fits(array, what)
        if not isinstance(saved["factors"], Mapping) or not all(type(each) is int for each in saved["factors"]):
            raise InvalidArgument("factors of a saved state must be a mapping of numbers of tensors to arrays")
        factors = {number: _checked(each, "factor", 2) for number, each in saved["factors"].items()}
        self.residual, self.momentum, self.factors = kept.get("residual"), kept.get("momentum"), factors
        self.num_steps, self.num_dense_steps = (saved[name] for name in _COUNTS)

    def _check_fits(self, saved: NDArray[np.float32], what: str) -> None:
        """Check that a saved array fits the present one, if there is one."""
        kept = getattr(self, what)
        if kept is not None and len(kept) != len(saved):
            raise InvalidArgument(
                f"the saved {what}{self._of_name} has {len(saved)} elements, but the array {len(kept)}"
            )

    @property
    def _of_name(self) -> str:
        return f" of {self.name}" if self.name else ""


def check_saved(saved: Any, what: str, version: int, keys: tuple[str, ...]) -> None:
    """Check that something is a saved mapping with a version and some other keys.

    Raises:
        InvalidType: it is no mapping.
        InvalidArgument: it has other keys, or another version.
    """
    if not isinstance(saved, Mapping):
        raise InvalidType(f"{what} must be a mapping, not {type(saved).__name__}")
    known = {"version", *keys}
    if set(saved) != known:
        raise InvalidArgument(f"{what} must have {sorted(known)}, not {sorted(map(str, saved))}")
    if saved["version"] != version:
        raise InvalidArgument(f"{what} has version {saved['version']!r}, but this is version {version}")


def _checked(saved: Any, what: str, ndim: int) -> NDArray[np.float32]:
    """Return a copy of a saved array."""
    try:
        array: NDArray[np.float32] = np.array(saved)
    except ValueError:  # rows of different lengths
        raise InvalidArgument(f"a saved {what} must be an array of float32, not {saved!r:.80}") from None
    if array.dtype != np.float32 or array.ndim != ndim or not np.isfinite(array).all():
        dimensions = "one dimension" if ndim == 1 else f"{ndim} dimensions"
        raise InvalidArgument(
            f"a saved {what} must be finite float32 of {dimensions}, not {array.dtype} of shape {array.shape}"
        )
    return array
