"""Losses, metrics and weights equal those of `model.fit`, with all arguments of `model.compile`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import hocket as hk

from ..naming import assert_names
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
        assert set(found["hocket"]) == set(found["keras"])
        assert found["distance"] < 1e-6


def test_batches_are_numbered_from_0_in_every_epoch() -> None:
    first, second = (rank["warming"] for rank in ranks())
    assert first["batches of hocket"] == first["batches of keras"] == [0, 1, 0, 1]
    assert second["batches of hocket"] == []


def test_a_saved_training_has_the_averages_of_all_ranks() -> None:
    assert all(rank["saved"] for rank in ranks())


def test_what_is_frozen_between_trainings_keeps_its_averages() -> None:
    assert all(rank["frozen between"] < 1e-6 for rank in ranks())


def test_a_stop_within_an_epoch_reads_no_further() -> None:
    for rank in ranks():
        of_keras, of_hocket = rank["read"]
        assert of_hocket == of_keras


def test_a_dataset_of_samples_and_a_list_of_batches() -> None:
    for rank in ranks():
        of_samples, of_batches = rank["dataset"]
        assert of_samples == pytest.approx(of_batches, rel=1e-5)


def test_what_a_callback_raises_reaches_all_ranks() -> None:
    assert [rank["failing"] for rank in ranks()] == ["the disk is full"] * 2


REFUSED: dict[str, tuple[str, ...]] = {
    "mixed": ("InvalidModel", "sum", "sum_over_batch_size"),
    "masked": ("InvalidModel", "loss", "mask", "weigh"),
    "accumulated": ("InvalidModel", "gradient_accumulation_steps", "global_clipnorm"),
    "norm": ("InvalidModel", "stages 0 and 1", "'batch_normalization"),
    "spectral": ("InvalidModel", "kernel", "2", "num_micro_batches=1"),
    "dice": ("InvalidModel", "'dice'", "axis=None"),
    "circle": ("InvalidModel", "'circle'"),
    "ignored": ("InvalidModel", "1", "weigh"),
    "stateful": ("InvalidModel", "layer"),
    "freezing": ("InvalidModel", "trainable", "stop_training"),
    "compiling": ("InvalidModel", "callback", "stop_training"),
    "seed": ("InvalidArgument", "seed", "0", "rank 0", "1", "rank 1"),
    "weighing": ("InvalidType", "weigh", "sample_weight", "'a'"),
    "shape": ("InvalidArgument", "(8, 4)", "'conv2d'"),
    "no loss": ("InvalidModel", "model.compile"),
    "masked by weights": ("InvalidModel", "loss", "mask", "weigh"),
    "scale": ("none",),  # the numbers are equal without it
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    for rank in ranks():
        assert_names(rank["refused"][name], *REFUSED[name])


def test_a_model_is_not_built_where_an_argument_is_wrong() -> None:
    assert [rank["built"] for rank in ranks()] == [False, False]
