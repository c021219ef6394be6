"""Engines whose servers have the parameters train a network to the accuracy of one that sums."""

from __future__ import annotations

import pytest

import hocket as hk
from hocket.train import EngineChoice, gradient_engines

from ..tier import full
from .digits import ENGINES, accuracies, assert_converged

pytest.importorskip("grpc")


@full
@pytest.mark.timeout(1200)
def test_digits_are_learnt_with_every_engine_that_updates() -> None:
    assert {each for each in gradient_engines() if EngineChoice(each).updates} < set(ENGINES)
    assert_converged(hk.spawn(accuracies, 4, timeout=1150))
