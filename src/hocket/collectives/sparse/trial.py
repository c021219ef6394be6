"""Whether a sum is faster dense: found out by the first steps, which are half dense and half sparse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUM_STEPS = 4
"""Of each kind; the shortest counts, since disturbances only lengthen times."""
_LEAST_GAIN = 1.25
"""A sparse step must be so many times as fast: its sum comes late in part, and few times are noisy."""
NUM_WORDS = 2


class DenseTrial:
    """The times of the first steps of one kind of sum; equal decisions on all ranks.

    Dense steps come first: they leave no residual, and the first steps of a training change most.

    Args:
        mode: "auto" tries; "never" and "always" decide without.

    Attributes:
        decision: whether sums are dense; None: not decided yet, or not known to be so on all ranks.
        reason: of the decision.
    """

    def __init__(self, mode: str) -> None:
        self._seconds: dict[bool, list[float]] = {True: [], False: []}
        self._mode = mode
        self.decision: bool | None = False if mode == "never" else None
        self.reason = f"dense={mode!r}" if mode != "auto" else "the first steps are tried"

    @property
    def is_over(self) -> bool:
        """Whether all steps of the trial are done."""
        return len(self._seconds[False]) >= NUM_STEPS

    @property
    def is_dense(self) -> bool:
        """Whether the next step is dense."""
        if self.decision is not None:
            return self.decision
        return self._mode == "always" or len(self._seconds[True]) < NUM_STEPS

    def words(self) -> NDArray[np.int64]:
        """Return this rank's times in nanoseconds, to be added up over the ranks before the decision."""
        if self.decision is not None or not self.is_over:
            return np.zeros(NUM_WORDS, np.int64)
        return np.array([round(1e9 * min(self._seconds[each])) for each in (True, False)], np.int64)

    def note(self, seconds: float, *, was_dense: bool) -> None:
        """Note the time of a step."""
        if self.decision is None:
            self._seconds[was_dense].append(seconds)

    def decide(self, words: NDArray[np.int64], num_ranks: int) -> None:
        """Decide by the sums of all ranks' `words`, once the trial is over; they agree about the mode."""
        if self._mode == "always":
            self.decision = True
        if self.decision is not None or not self.is_over:
            return
        dense_s, sparse_s = (each * 1e-9 / num_ranks for each in words.tolist())
        self.decision = dense_s < _LEAST_GAIN * sparse_s
        self.reason = (
            f"in the first steps a dense sum took {1e3 * dense_s:.3g} ms, and a sparse one {1e3 * sparse_s:.3g} ms"
        )
