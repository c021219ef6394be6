"""A Keras model learns as much with servers that have the parameters as with an engine that sums."""

from __future__ import annotations

import pytest

import hocket as hk

from ..tier import full
from ..train.digits import assert_converged
from .digits import accuracies

pytest.importorskip("grpc")


@full
@pytest.mark.timeout(1200)
def test_digits_are_learnt_with_every_engine_that_updates() -> None:
    assert_converged(hk.spawn(accuracies, 4, timeout=1150))
