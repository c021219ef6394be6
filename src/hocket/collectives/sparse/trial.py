"""Whether a sum is faster dense: found out by the first steps, half dense and half sparse, and by a few later ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUM_STEPS = 4
"""Of each kind; the shortest counts, since disturbances only lengthen times."""
_LEAST_GAIN = 1.25
"""A sparse step must be so many times as fast: its sum comes late in part, and few times are noisy."""
_FIRST_CHECK = 16
"""After so many steps, and twice as many each time, one is dense again: connections carry the first ones slowly."""
_MOST_GAIN = 4.0
"""No error of the first times is so large; then no step is spent on finding it."""
NUM_WORDS = 2


class DenseTrial:
    """The times of steps of one kind of sum; equal decisions on all ranks.

    Dense steps come first: they leave no residual, and the first steps of a training change most. A decision for sparse
    sums is checked now and then by one dense step.

    Args:
        mode: "auto" tries; "never" and "always" decide without.

    Attributes:
        decision: whether sums are dense; None: not decided yet, or not known to be so on all ranks.
        reason: of the decision.
    """

    def __init__(self, mode: str) -> None:
        self._least_s = {True: float("inf"), False: float("inf")}
        self._num_steps = {True: 0, False: 0}
        self._next_check = _FIRST_CHECK
        self._is_checked = False
        self._has_news = False
        self._mode = mode
        self.decision: bool | None = False if mode == "never" else None
        self.reason = f"dense={mode!r}" if mode != "auto" else "the first steps are tried"

    @property
    def is_over(self) -> bool:
        """Whether all steps of the trial are done."""
        return self._num_steps[False] >= NUM_STEPS

    @property
    def is_dense(self) -> bool:
        """Whether the next step is dense."""
        if self.decision is False:
            return self._is_checked and sum(self._num_steps.values()) >= self._next_check
        return self.decision or self._mode == "always" or self._num_steps[True] < NUM_STEPS

    @property
    def _decides(self) -> bool:
        return self._mode == "auto" and self.is_over and (self.decision is None or self._has_news)

    def words(self) -> NDArray[np.int64]:
        """Return this rank's times in nanoseconds, to be added up over the ranks before the decision."""
        if not self._decides:
            return np.zeros(NUM_WORDS, np.int64)
        return np.array([round(1e9 * self._least_s[each]) for each in (True, False)], np.int64)

    def note(self, seconds: float, *, was_dense: bool) -> None:
        """Note the time of a step."""
        if self.decision:
            return
        self._least_s[was_dense] = min(self._least_s[was_dense], seconds)
        self._num_steps[was_dense] += 1
        if self.decision is False and was_dense:
            self._has_news = True
            self._next_check *= 2

    def decide(self, words: NDArray[np.int64], num_ranks: int) -> None:
        """Decide by the sums of all ranks' `words`, once there are times; they agree about the mode."""
        if self._mode == "always":
            self.decision = True
        if not self._decides:
            return
        dense_s, sparse_s = (each * 1e-9 / num_ranks for each in words.tolist())
        self.decision = dense_s < _LEAST_GAIN * sparse_s
        self._is_checked = dense_s < _MOST_GAIN * sparse_s
        self._has_news = False
        self.reason = f"a dense sum took {1e3 * dense_s:.3g} ms, and a sparse one {1e3 * sparse_s:.3g} ms"
