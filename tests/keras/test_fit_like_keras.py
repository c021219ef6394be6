"""Every feature of `model.fit`, `model.compile` and `keras.callbacks` of the installed Keras works as in Keras, or is
refused by name."""

from __future__ import annotations

import inspect
import re
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import hocket as hk

from ..naming import Given, assert_names
from .fit_cases import CALLBACKS, COMPILED, ELSEWHERE, PARAMETERS
from .fit_like_keras import all_cases, fit_like_keras, keras, torch
from .fit_material import Dependent

pytestmark = pytest.mark.timeout(300)


@lru_cache
def outcome() -> list[dict[str, Any]] | Exception:
    try:
        with TemporaryDirectory() as folder:
            found: list[dict[str, Any]] = hk.spawn(fit_like_keras, 2, Path(folder), timeout=200)
    except Exception as error:  # every test shows the error, and no test repeats the run
        return error
    return found


def ranks() -> list[dict[str, Any]]:
    found = outcome()
    if isinstance(found, Exception):
        raise found
    return found


def test_every_parameter_of_fit_is_here() -> None:
    from hocket.keras import fit

    names = [name for name in inspect.signature(keras.Model.fit).parameters if name != "self"]
    assert set(PARAMETERS) == set(names)
    assert set(names) <= set(inspect.signature(fit).parameters)


def test_every_parameter_of_compile_is_here() -> None:
    assert set(COMPILED) == set(inspect.signature(keras.Model.compile).parameters) - {"self"}


def test_every_callback_is_here() -> None:
    there = {name for name, each in vars(keras.callbacks).items() if inspect.isclass(each)}
    assert {*CALLBACKS, *ELSEWHERE} == there


def close(found: Any, wanted: Any, tolerance: float = 2e-5) -> bool:
    """Return whether trees of numbers are equal up to rounding."""
    if isinstance(wanted, dict):
        return set(found) == set(wanted) and all(close(found[key], wanted[key], tolerance) for key in wanted)
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(
            close(one, other, tolerance) for one, other in zip(found, wanted, strict=True)
        )
    if isinstance(wanted, float):
        return bool(np.isclose(found, wanted, rtol=tolerance, atol=tolerance / 20, equal_nan=True))
    return bool(found == wanted)


@pytest.mark.parametrize("name", all_cases())
def test_what_it_makes_is_what_keras_makes(name: str) -> None:
    first, other = (rank[name] for rank in ranks())
    tolerance = all_cases()[name].get("tolerance", 2e-5)
    for found in (first, other):
        assert close(found["hocket"]["history"], found["keras"]["history"], tolerance), (
            found["hocket"]["history"], found["keras"]["history"])  # fmt: skip
        assert found["hocket"]["epoch"] == found["keras"]["epoch"]
        assert found["hocket"]["scales"] == found["keras"]["scales"]
        assert found["hocket"]["counters"] == found["keras"]["counters"]
        assert close(found["hocket"]["evaluated"], found["keras"]["evaluated"], tolerance)
        assert np.nan_to_num(np.array(found["distances"]), nan=0.0).max() < tolerance / 10
    mine, wanted = first["hocket"], first["keras"]
    assert close(mine["told"], wanted["told"]), (mine["told"], wanted["told"])
    if "workers" not in name:
        assert [each for each in mine["data"] if each == "end"] == [each for each in wanted["data"] if each == "end"]
    lines, those = mine["written"].splitlines(), wanted["written"].splitlines()
    assert [line.split(",")[0] for line in lines] == [line.split(",")[0] for line in those]
    assert lines[:1] == those[:1]


REFUSED: dict[str, tuple[str, ...]] = {
    "own loss": ("InvalidModel", "num_micro_batches=1", "weigh"),
    "own class of loss": ("InvalidModel", "num_micro_batches=1"),
    "loss along samples": ("InvalidModel", "axis=0"),
    "added sums": ("InvalidModel", "num_micro_batches=1"),
    "metrics of layers": ("InvalidModel", "'kl'"),
    "sample_weight without y": ("InvalidArgument", "sample_weight", "y"),
    "own loss of two replicas": ("InvalidModel", 'strategy="model"', "num_micro_batches=1"),
    "wrong weigh": ("InvalidModel", "weigh"),
    "optional input": ("InvalidModel", "1"),
    "no y": ("InvalidArgument", "y"),
    "an output without target": ("InvalidArgument", "'b'"),
    "one target of two": ("InvalidArgument", "1", "2"),
    "steps_per_execution": ("InvalidModel", "steps_per_execution", "2"),
    "jit_compile": ("InvalidModel", "jit_compile"),
    "class_weight and sample_weight": ("InvalidArgument", "class_weight", "sample_weight"),
    "class_weight of a loader": ("InvalidArgument", "class_weight"),
    "sample_weight of a loader": ("InvalidArgument", "sample_weight", "DataLoader"),
    "sample_weight twice": ("InvalidArgument", "sample_weight"),
    "validation_split of a loader": ("InvalidArgument", "validation_split", "DataLoader"),
    "validation_split": ("InvalidArgument", "validation_split", "1.5"),
    "validation_freq": ("InvalidArgument", "validation_freq", "'often'"),
    "steps_per_epoch": ("InvalidArgument", "steps_per_epoch", "0"),
    "four things": ("InvalidArgument", "4"),
    "an empty generator": ("InvalidArgument",),
    "nothing": ("InvalidType", "x"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    for rank in ranks():
        assert_names(rank["refused"][name], *REFUSED[name])
        assert rank["refused"][name].endswith("(weights changed: False)")


@pytest.mark.parametrize(
    ("name", "module"), [("TensorBoard", "tensorflow"), ("OrbaxCheckpoint", "orbax"), ("RemoteMonitor", "requests")]
)
def test_callbacks_that_miss_a_package_say_so_on_every_rank(name: str, module: str) -> None:
    for rank in ranks():
        assert re.match("(ImportError|ModuleNotFoundError): ", rank["absent"][name])
        assert_names(rank["absent"][name], Given(module))


def test_nothing_is_refused_that_is_not_here() -> None:
    assert all(set(rank["refused"]) == set(REFUSED) for rank in ranks())


METRICS: dict[str, dict[str, Any]] = {
    "Accuracy": {}, "SparseTopKCategoricalAccuracy": {"k": 1}, "TopKCategoricalAccuracy": {"k": 1},
    "PrecisionAtRecall": {"recall": 0.5}, "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5}, "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "BinaryIoU": {}, "IoU": {"num_classes": 3, "target_class_ids": [0, 1]}, "MeanIoU": {"num_classes": 3},
    "OneHotIoU": {"num_classes": 3, "target_class_ids": [0]}, "OneHotMeanIoU": {"num_classes": 3},
    "MeanMetricWrapper": {"fn": keras.losses.mean_squared_error},
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [name for name, each in vars(keras.metrics).items() if inspect.isclass(each) and name != "Metric"]
)
def test_variables_of_metrics_that_count_as_sums_add_up(name: str) -> None:
    """The variables of parts of a batch sum to those of the whole; other metrics are not assumed to."""
    from hocket.keras.meter import is_sum_over_samples

    generator = np.random.default_rng(0)
    output = generator.random((9, 3)).astype("float32")
    target = np.eye(3, dtype="float32")[generator.integers(0, 3, 9)]
    if name in ("SparseCategoricalAccuracy", "SparseTopKCategoricalAccuracy", "SparseCategoricalCrossentropy"):
        target = target.argmax(-1)
    if name == "BinaryIoU":
        output, target = output[:, 0], target[:, 0]
    if name in ("IoU", "MeanIoU"):
        output, target = output.argmax(-1), target.argmax(-1)
    weight = generator.random(9).astype("float32")
    arguments = (output, weight) if name in ("Mean", "Sum") else (target, output, weight)

    def variables(first: int, last: int) -> list[Any]:
        metric = getattr(keras.metrics, name)(**METRICS.get(name, {}))
        assert is_sum_over_samples(metric)
        metric.update_state(*(each[first:last] for each in arguments))
        return [np.array(keras.ops.convert_to_numpy(each)) for each in metric.variables]

    for whole, *parts in zip(variables(0, 9), variables(0, 2), variables(2, 9), strict=True):
        np.testing.assert_allclose(sum(parts), whole, rtol=1e-5, atol=1e-6)


def test_metrics_that_are_no_sums() -> None:
    from hocket.keras.meter import is_sum_over_samples

    for each in (
        "nothing",
        keras.losses.dice,
        keras.losses.circle,
        keras.losses.MeanSquaredError(),
        keras.losses.Dice(),
        lambda y, output: 0.0,
    ):
        assert not is_sum_over_samples(each)
    for each in ("accuracy", "mae", keras.losses.mean_absolute_error):
        assert is_sum_over_samples(each)


def test_whose_code_is_taken_on_trust() -> None:
    """A loss of torch is checked like a user's own loss."""
    from hocket.keras.parts import is_of_keras

    for each in (keras.losses.mean_squared_error, keras.losses.MeanSquaredError(), keras.layers.Dense):
        assert is_of_keras(each)
    for each in (torch.nn.functional.mse_loss, torch.sum, max, lambda y, output: 0.0, Dependent()):
        assert not is_of_keras(each)
