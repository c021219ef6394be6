"""Losses, metrics and weights are those of `model.fit`, whatever a model was compiled with."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import hocket as hk

from .like_keras import CASES, like_keras

pytestmark = pytest.mark.timeout(200)


@lru_cache
def ranks() -> list[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        found: list[dict[str, Any]] = hk.spawn(like_keras, 2, Path(folder), timeout=150)
    return found


@pytest.mark.parametrize("name", CASES)
def test_numbers_and_weights_are_those_of_keras(name: str) -> None:
    for rank in ranks():
        found = rank[name]
        for key, values in found["keras"].items():
            assert found["hocket"][key] == [pytest.approx(each, rel=1e-5) for each in values]
        assert set(found["hocket"]) == {*found["keras"], "samples_per_s"}
        assert found["distance"] < 1e-6


def test_batches_are_numbered_from_0_in_every_epoch() -> None:
    first, second = (rank["warming"] for rank in ranks())
    assert first["batches of hocket"] == first["batches of keras"] == [0, 1, 0, 1]
    assert second["batches of hocket"] == []


def test_a_saved_training_has_the_averages_of_all_ranks() -> None:
    assert all(rank["saved"] for rank in ranks())


def test_what_is_frozen_between_trainings_keeps_its_averages() -> None:
    assert all(rank["frozen between"] < 1e-6 for rank in ranks())


def test_a_dataset_of_samples_and_a_list_of_batches() -> None:
    for rank in ranks():
        of_samples, of_batches = rank["dataset"]
        assert of_samples == pytest.approx(of_batches, rel=1e-5)


def test_what_a_callback_raises_reaches_all_ranks() -> None:
    assert [rank["failing"] for rank in ranks()] == ["the disk is full"] * 2


REFUSED = {
    "mixed": "InvalidModel: the losses of the model have reductions sum, sum_over_batch_size",
    "masked": "InvalidModel: the loss is a mean over what the mask of output",
    "accumulated": "InvalidModel: the optimizer has gradient_accumulation_steps and global_clipnorm",
    "norm": "InvalidModel: stages 0 and 1 share 'batch_normalization",
    "spectral": "writes to its kernel in every forward pass, and there are 2 before the optimizer's step",
    "dice": "InvalidModel: loss 'dice' with axis=None is one number for a batch",
    "circle": "InvalidModel: loss 'circle' compares a batch's samples with each other",
    "ignored": "is a mean over what is not of class 1",
    "stateful": "keeps its state between batches",
    "freezing": "InvalidModel: a callback has set trainable of 'dense",
    "halving": "within an epoch, when a rank has a part of the model alone",
    "compiling": "InvalidModel: a callback has compiled the model anew",
    "seed": "InvalidArgument: seed is 0 on rank 0 and 1 on rank 1",
    "weighing": "InvalidType: weigh is a function of y and sample_weight, not 'a'",
    "no loss": "is compiled without a loss",
    "masked by weights": "InvalidModel: the loss is a mean over what the mask of output",
    "scale": "none",  # its numbers do not change
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    for rank in ranks():
        assert REFUSED[name] in rank["refused"][name]
