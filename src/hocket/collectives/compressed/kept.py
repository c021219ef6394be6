"""What tensors keep between compressed sums, apart from the arrays that they are put together in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from hocket.collectives.residual import ResidualState

SCALED = ("residuals", "momenta")
"""What is a sum of gradients, and a vector of a tensor's elements."""
KEPT = (*SCALED, "factors")


@dataclass
class KeptOfTensors:
    """What tensors keep, by keys of theirs.

    Args:
        num_steps: number of sums so far.
        residuals, momenta: vectors.
        factors: matrices.

    Examples:
        >>> from hocket.collectives.compressed.kept import KeptOfTensors
        >>> state = hk.ResidualState()
        >>> state.residual = np.arange(5, dtype=np.float32)
        >>> kept = KeptOfTensors.of(state, ["weight", "bias"], [3, 2])
        >>> kept.residuals["bias"]
        array([3., 4.], dtype=float32)
        >>> other = hk.ResidualState()
        >>> kept.give(other, ["bias", "weight"], [2, 3])
        >>> other.residual
        array([3., 4., 0., 1., 2.], dtype=float32)
    """

    num_steps: int = 0
    residuals: dict[Hashable, NDArray[np.float32]] = field(default_factory=dict)
    momenta: dict[Hashable, NDArray[np.float32]] = field(default_factory=dict)
    factors: dict[Hashable, NDArray[np.float32]] = field(default_factory=dict)

    @classmethod
    def of(cls, state: ResidualState, keys: Sequence[Hashable], sizes: Sequence[int]) -> KeptOfTensors:
        """Return copies of what the tensors of an array keep.

        Args:
            state: of the array.
            keys: of its tensors, in order.
            sizes: numbers of their elements.
        """
        kept, ends = cls(state.num_steps), np.cumsum(sizes)[:-1]
        for of_tensors, whole in ((kept.residuals, state.residual), (kept.momenta, state.momentum)):
            if whole is not None:
                of_tensors.update(zip(keys, np.split(whole.copy(), ends), strict=True))
        kept.factors.update({keys[number]: each.copy() for number, each in state.factors.items()})
        return kept

    def give(self, state: ResidualState, keys: Sequence[Hashable], sizes: Sequence[int]) -> None:
        """Move what some tensors keep to the state of an array that is put together from them."""
        state.num_steps = self.num_steps
        state.residual = _joined(self.residuals, keys, sizes)
        state.momentum = _joined(self.momenta, keys, sizes)
        state.factors = {number: self.factors.pop(key) for number, key in enumerate(keys) if key in self.factors}

    def add(self, other: KeptOfTensors) -> None:
        """Take over what other tensors keep."""
        self.num_steps = max(self.num_steps, other.num_steps)
        for what in KEPT:
            getattr(self, what).update(getattr(other, what))

    def scale(self, factor: float) -> None:
        """Multiply residuals and momenta."""
        for what in SCALED:
            setattr(self, what, {key: each * np.float32(factor) for key, each in getattr(self, what).items()})


def _joined(
    of_tensors: dict[Any, NDArray[np.float32]], keys: Sequence[Hashable], sizes: Sequence[int]
) -> NDArray[np.float32] | None:
    """Take the vectors of some tensors out, and return them one after the other; zeros for those that have none."""
    parts = [of_tensors.pop(key, None) for key in keys]
    if all(part is None for part in parts):
        return None
    return np.concatenate(
        [np.zeros(size, np.float32) if part is None else part for part, size in zip(parts, sizes, strict=True)]
    )
