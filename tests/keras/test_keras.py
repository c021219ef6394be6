"""Unchanged Keras models on several ranks have the results of Keras in one process."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.errors import InvalidArgument, InvalidModel, InvalidType

from ..naming import raises
from ..tier import sample
from .models import compare_application, keras, losses_of_one_process, network, train, train_all

pytestmark = pytest.mark.timeout(250)

CASES: dict[str, dict[str, Any]] = {
    "data": {"how": "", "strategy": "data"},
    "model": {"how": "", "strategy": "model", "num_micro_batches": 2},
    "hybrid": {"how": "", "strategy": "hybrid", "num_partitions": 2, "num_micro_batches": 3},
    "exact": {"how": "", "strategy": "model", "num_micro_batches": 2, "exact": True},
    "zb-v": {"how": "", "strategy": "model", "schedule": "zb-v", "num_micro_batches": 4},
    "chimera": {"how": "decay", "strategy": "model", "schedule": "chimera", "num_micro_batches": 4},
    "recompute": {"how": "", "strategy": "model", "num_micro_batches": 4, "recompute": True},
    "clipped": {"how": "clipped", "strategy": "hybrid", "num_partitions": 2, "num_micro_batches": 2},
    "clipped each": {"how": "clipped each", "strategy": "model", "num_micro_batches": 2},
    "weighted": {"how": "weighted", "strategy": "hybrid", "num_partitions": 2, "num_micro_batches": 2},
    "halved": {"how": "halved", "strategy": "model", "num_micro_batches": 2},
    "stopped": {"how": "stopped", "strategy": "model", "num_micro_batches": 2, "epochs": 4},
}
CASES = {
    name: CASES[name]
    for name in sample(CASES, 2, always=("data", "hybrid", "chimera", "weighted", "halved", "stopped"))
}


@lru_cache
def trainings() -> list[dict[str, dict[str, Any]]]:
    found = hk.spawn(train_all, 4, list(CASES.values()), timeout=200)
    return [dict(zip(CASES, of_rank, strict=True)) for of_rank in found]


@pytest.mark.parametrize("name", [name for name in CASES if name != "stopped"])
def test_losses_and_weights_are_those_of_keras_alone(name: str) -> None:
    losses, weights = losses_of_one_process(2, CASES[name]["how"])
    sizes = np.array([12, 12, 12, 6])
    for of_rank in trainings():
        means = [float(np.average(losses[first : first + 4], weights=sizes)) for first in (0, 4)]
        assert of_rank[name]["history"]["loss"] == pytest.approx(means, rel=2e-6)  # Keras has float32 in places
        for found, wanted in zip(of_rank[name]["weights"], weights, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_all_ranks_have_the_same_history_weights_and_optimizer() -> None:
    first, *others = trainings()
    for other in others:
        for name in CASES:
            assert other[name]["history"] == first[name]["history"]
            for kind in ("weights", "optimizer"):
                for found, wanted in zip(other[name][kind], first[name][kind], strict=True):
                    np.testing.assert_array_equal(found, wanted)


def test_validation_is_that_of_keras() -> None:
    for name in ("hybrid", "chimera", "weighted"):
        found = trainings()[0][name]
        model = network(CASES[name]["how"])
        model.set_weights(found["weights"])
        x, y = train.__globals__["data"]()[:2]
        wanted = model.evaluate(x, y, verbose=0, return_dict=True)
        assert found["history"]["val_accuracy"][-1] == pytest.approx(wanted["accuracy"])
        assert found["history"]["val_weighted"][-1] == pytest.approx(wanted["weighted"])
        assert found["history"]["val_loss"][-1] == pytest.approx(wanted["loss"], rel=2e-6)


def test_callbacks_run_on_rank_0() -> None:
    first, *others = (of_rank["halved"] for of_rank in trainings())
    batches = [f"batch {number}" for number in (0, 1, 2, 3)] * 2
    assert [call for call in first["calls"] if call.startswith("batch")] == batches
    assert [call for call in first["calls"] if call.startswith("epoch")] == ["epoch 0", "epoch 1"]
    assert all(other["calls"] == [] for other in others)


def test_early_stopping_and_its_weights_reach_all_ranks() -> None:
    found = trainings()[0]["stopped"]
    assert found["epoch"] == [0, 1]
    one = trainings()[0]["stopped"]["weights"]
    _, after_one_epoch = losses_of_one_process(1, "stopped")
    for got, wanted in zip(one, after_one_epoch, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_saved_model_is_whole(tmp_path: Path) -> None:
    options = {"how": "saved", "folder": tmp_path, "strategy": "model", "num_micro_batches": 2}
    (found,), _ = hk.spawn(train_all, 2, [options], timeout=100)
    model = keras.models.load_model(tmp_path / "model-2.keras")
    for got, wanted in zip(model.get_weights(), found["weights"], strict=True):
        np.testing.assert_array_equal(got, wanted)
    for got, wanted in zip(model.optimizer.variables, found["optimizer"], strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(got), wanted)


APPLICATIONS = {
    "ResNet50": 40, "DenseNet121": 40, "InceptionV3": 75, "MobileNetV2": 40, "EfficientNetB0": 40,
}  # fmt: skip


@pytest.mark.parametrize("name", sample(APPLICATIONS, 1))
def test_applications_cut_anywhere_are_the_same_bit_for_bit(name: str) -> None:
    (found,) = hk.spawn(compare_application, 1, name, APPLICATIONS[name], (2, 3, 4), timeout=200)
    for num_stages, each in found.items():
        assert each["num_gradients"] > 100
        assert each["num_hops"] >= num_stages - 1
        assert not each["output"]
        assert each["gradients"] == []
        assert each["buffers"] == []
    assert found[4]["num_replayed"] > 0.95 * found[4]["num_operations"]  # the third time, without Keras


def test_models_that_cannot_be_split() -> None:
    from hocket.keras import fit, graph_of_keras

    class Own(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    with raises(InvalidType, names=("keras.Model", "3")):
        graph_of_keras(3)  # type: ignore[arg-type]
    with raises(InvalidModel, names=("'own'", "keras.Model", "keras.Sequential")):
        graph_of_keras(Own(name="own"))
    with raises(InvalidModel, names="keras.Input(shape)"):
        graph_of_keras(keras.Sequential([keras.layers.Dense(2)]))
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    with raises(InvalidModel, names="model.compile"):
        fit(plain, (np.zeros((4, 2)), np.zeros(4)))
    inputs = keras.Input((None, 3), batch_size=2)
    stateful = keras.Model(inputs, keras.layers.LSTM(4, stateful=True, name="remembers")(inputs))
    with raises(InvalidModel, names="'remembers'"):
        graph_of_keras(stateful)
    plain.compile("sgd", "mse")
    with raises(InvalidArgument, names=("2", "1", "hocket run -n 2")):
        fit(plain, (np.zeros((4, 2)), np.zeros((4, 2))), num_partitions=2)


def test_a_training_step_of_its_own_is_refused() -> None:
    from hocket.keras import fit

    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            return {}

    inputs = keras.Input((2,))
    model = Own(inputs, keras.layers.Dense(2)(inputs))
    model.compile("sgd", "mse")
    with raises(InvalidModel, names="train_step"):
        fit(model, (np.zeros((4, 2)), np.zeros((4, 2))))
