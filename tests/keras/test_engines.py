"""Keras models with every gradient engine: losses, weights and optimizers are those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.errors import InvalidArgument
from hocket.train import gradient_engines

from ..naming import assert_names, raises
from ..tier import full
from .engine_ranks import (
    LOSSLESS,
    LOSSY,
    SUMMING,
    UPDATING,
    alone,
    called_back,
    compiled,
    compressed,
    keras,
    samples,
    summed,
    trained,
    updated,
    written,
)

pytest.importorskip("grpc")
pytestmark = pytest.mark.timeout(250)


def assert_close(found: dict[str, Any], wanted: dict[str, Any], what: str, *kinds: str) -> None:
    for kind in kinds or ("loss", "weights", "optimizer"):
        for one, other in zip(found[kind], wanted[kind], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6, err_msg=f"{kind} with {what}")


@pytest.mark.parametrize("num_ranks", [pytest.param(2, marks=full), 4])
def test_engines_that_sum_train_as_one_process(num_ranks: int) -> None:
    plain = alone(keras.optimizers.SGD(0.1, momentum=0.9))
    of_ranks = hk.spawn(summed, num_ranks, timeout=200)
    assert {name for name, _ in of_ranks[0]} == {*SUMMING, "one process"}
    for of_rank in of_ranks:
        one = of_rank["one process", True]
        assert_close(one, plain, "one process")
        for (name, exact), found in of_rank.items():
            assert_close(found, one, f"{name}, exact={exact}")
            if exact:
                assert gradient_engines()[name].has_order if name in SUMMING else name == "one process"
                assert found["loss"] == one["loss"], name
                assert all(map(np.array_equal, found["weights"], one["weights"])), name


def test_compressed_gradients() -> None:
    """Compressors that keep everything train as one process; the others lower the loss, equally on all ranks."""
    pytest.importorskip("zfpy")
    plain = alone(keras.optimizers.SGD(0.1, momentum=0.9))
    of_ranks = hk.spawn(compressed, 2, timeout=200)
    for each in (*LOSSLESS, *LOSSY):
        found = of_ranks[0][each]
        assert_close(of_ranks[1][each], found, each, "weights")
        if each in LOSSLESS:
            assert_close(found, plain, each)
        assert found["loss"][-1] < found["loss"][0], each


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"gradients": "qsgd", "engine": "ring"}, ("ring", "qsgd", "compressed")),
        ({"gradients": "gzip"}, ("gzip", "qsgd")),
        ({"gradients": "qsgd", "exact": True}, ("exact", "compressed")),
        ({"messages": "qsgd"}, ("qsgd", "lossless")),
    ],
)
def test_compression_that_is_not_possible(options: dict[str, Any], names: tuple[str, ...]) -> None:
    with hk.init() as comm, raises(InvalidArgument, names=names):
        hk.keras.fit(compiled(keras.optimizers.SGD(0.1)), *samples(), comm=comm, verbose=0, **options)


@full
def test_servers_of_one_rank_are_keras_alone() -> None:
    def optimizer() -> Any:
        rate = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.9)
        return keras.optimizers.Nadam(rate, use_ema=True, clipnorm=0.5, weight_decay=0.01)

    with hk.init() as comm:
        options = {"num_servers": 2, "message_nbytes": 100}
        found = trained(comm, "parameter-server-async", optimizer(), engine_options=options)
    assert_close(found, alone(optimizer()), "two servers")


def test_a_training_goes_on_with_the_optimizer_of_the_servers() -> None:
    models = [compiled(keras.optimizers.Adam(0.05)) for _ in range(2)]
    with hk.init() as comm:
        hk.keras.fit(models[0], *samples(), engine="parameter-server-async", comm=comm, verbose=0, shuffle=False)
    models[1].fit(*samples(), verbose=0, shuffle=False)
    for model in models:
        model.fit(*samples(), verbose=0, shuffle=False)
    for found, wanted in zip(models[0].variables, models[1].variables, strict=True):
        np.testing.assert_allclose(found.value.detach(), wanted.value.detach(), rtol=1e-4, atol=1e-6)


def test_servers_of_two_ranks() -> None:
    first, second = hk.spawn(updated, 2, timeout=200)
    wanted = alone(keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.9)))
    for name in UPDATING:
        assert first[name]["loss"] == second[name]["loss"]
        assert first[name]["loss"][-1] < first[name]["loss"][0], name
        for kind in ("weights", "optimizer"):  # at the end all ranks have the same
            assert all(map(np.array_equal, first[name][kind], second[name][kind])), name
    assert_close(first["parameter-server-backup"], wanted, "no backup")


def test_callbacks_see_the_servers_variables_and_change_the_learning_rate(tmp_path: Path) -> None:
    folders = [tmp_path / "found", tmp_path / "wanted"]
    for each in folders:
        each.mkdir()
    with hk.init() as comm:
        found = called_back(comm, folders[0])
    wanted = called_back(None, folders[1])
    assert_close(found, wanted, "callbacks", "loss", "rates", "weights", "optimizer", "seen", "saved")
    assert len(found["seen"]) == 6 and all(found["seen"])


@full
def test_variables_that_servers_have_are_not_written_to() -> None:
    for errors in hk.spawn(written, 2, timeout=150):
        for (kind, text), name in zip(errors, ("kernel", "iteration"), strict=True):
            assert kind == "InvalidModel", text
            assert_names(text, name, "parameter-server-async")


def test_a_model_without_trained_variables_needs_no_servers() -> None:
    model = compiled(keras.optimizers.SGD(0.1))
    model.trainable = False
    with hk.init() as comm, pytest.warns(UserWarning, match="trainable"):
        found = hk.keras.fit(model, *samples(), engine="parameter-server-async", comm=comm, verbose=0)
    assert len(found.history["loss"]) == 1


def test_what_servers_cannot_have_is_refused_before_the_job_is_joined() -> None:
    for optimizer, name in (
        (keras.optimizers.SGD(0.1, global_clipnorm=1.0), "global_clipnorm"),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "LossScaleOptimizer"),
    ):
        for engine in UPDATING:
            with raises(InvalidArgument, names=name):
                hk.keras.fit(compiled(optimizer), *samples(), engine=engine)
