"""The trial whether sums are faster dense: decisions of some times, equal on all ranks, and what they cost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hocket.collectives.sparse.trial import DenseTrial


def run(seconds: Callable[[bool, int], float], num_steps: int, mode: str = "auto") -> tuple[DenseTrial, list[bool]]:
    """Return the trial after so many steps, and which were dense, if step i takes seconds(is it dense, i)."""
    trial, dense = DenseTrial(mode), []
    for step in range(num_steps):
        is_dense = trial.is_dense
        trial.decide(2 * trial.words(), 2)  # two ranks with equal times
        is_dense = is_dense or trial.is_dense
        trial.note(seconds(is_dense, step), was_dense=is_dense)
        dense.append(is_dense)
    return trial, dense


def test_dense_sums_that_are_faster_stay() -> None:
    trial, dense = run(lambda is_dense, step: 1.0 if is_dense else 1.2, 100)
    assert trial.decision is True and dense == [True] * 4 + [False] * 4 + [True] * 92


def test_sparse_sums_that_are_much_faster_are_never_checked() -> None:
    trial, dense = run(lambda is_dense, step: 10.0 if is_dense else 1.0, 1000)
    assert trial.decision is False and sum(dense) == 4


def test_sparse_sums_that_are_faster_are_checked_seldom() -> None:
    trial, dense = run(lambda is_dense, step: 2.0 if is_dense else 1.0, 1000)
    assert trial.decision is False
    assert np.flatnonzero(dense).tolist() == [0, 1, 2, 3, 16, 32, 64, 128, 256, 512]


@pytest.mark.parametrize("num_slow", [4, 20, 60])
def test_slow_first_steps_are_found_out(num_slow: int) -> None:
    """A connection that begins slowly makes dense sums look worse than they are."""
    trial, dense = run(lambda is_dense, step: (3.0 if step < num_slow else 1.0) if is_dense else 1.9, 200)
    assert trial.decision is True and all(dense[70:])


@pytest.mark.parametrize(("mode", "is_dense"), [("never", False), ("always", True)])
def test_without_trial(mode: str, is_dense: bool) -> None:
    _, dense = run(lambda was_dense, step: 1.0 + was_dense, 100, mode)
    assert dense == [is_dense] * 100
