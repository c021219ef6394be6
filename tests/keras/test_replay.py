"""Replayed operations equal those of Keras bit for bit, or Keras runs them, and the reason is reported."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import pytest
import torch

import hocket as hk
from hocket.keras import fit
from hocket.keras.capture import Capture, Obstacle
from hocket.keras.parts import ModelParts
from hocket.keras.replay import OperationReplay

from ..naming import assert_names, raises
from ..tier import sample
from .replaying import around, compare, inputs_of, seed_layers, stage_of, twins

pytestmark = pytest.mark.timeout(200)

layers = keras.layers
IMAGE, VECTOR, SEQUENCE = (8, 8, 3), (6,), (5, 6)
MAKERS: dict[str, tuple[Callable[[], keras.Layer], tuple[int, ...]]] = {
    "convolution": (lambda: layers.Conv2D(4, 3, 2, padding="same", activation="relu"), IMAGE),
    "causal": (lambda: layers.Conv1D(4, 2, padding="causal"), SEQUENCE),
    "depthwise": (lambda: layers.DepthwiseConv2D(3), IMAGE),
    "transposed": (lambda: layers.Conv2DTranspose(4, 3), IMAGE),
    "dense": (lambda: layers.Dense(4, activation="gelu", kernel_regularizer="l2"), VECTOR),
    "batch normalization": (layers.BatchNormalization, IMAGE),
    "group normalization": (lambda: layers.GroupNormalization(3), IMAGE),
    "layer normalization": (layers.LayerNormalization, SEQUENCE),
    "dropout": (lambda: layers.Dropout(0.5), VECTOR),
    "pooling": (lambda: layers.AveragePooling2D(2, padding="same"), IMAGE),
    "global pooling": (layers.GlobalMaxPooling2D, IMAGE),
    "attention": (lambda: layers.Bidirectional(layers.GRU(3, return_sequences=True)), SEQUENCE),
    "lstm": (lambda: layers.LSTM(4), SEQUENCE),
    "in time": (lambda: layers.TimeDistributed(layers.Dense(3)), SEQUENCE),
    "standardized": (lambda: layers.Normalization(mean=[1.0] * 6, variance=[2.0] * 6), VECTOR),
    "enlarged": (lambda: layers.UpSampling2D(2, interpolation="bilinear"), IMAGE),
    "nested": (
        lambda: keras.Sequential([layers.Dense(4), layers.BatchNormalization(), layers.PReLU(), layers.Dense(2)]),
        VECTOR,
    ),
}
LEFT: dict[str, tuple[Callable[[], keras.Layer], tuple[int, ...], str]] = {
    "seeded": (lambda: layers.Dropout(0.5, seed=1), VECTOR, "torch.Tensor.__int__"),
    "lambda": (lambda: layers.Lambda(lambda x: 2 * x), VECTOR, "function"),
    "activation": (lambda: layers.Activation(lambda x: x + 1), VECTOR, "activation"),
    "own": (lambda: Own(), VECTOR, "Own"),
    "within": (lambda: keras.Sequential([Own()]), VECTOR, "Own"),
    "loss": (lambda: layers.Dense(2, activity_regularizer="l2"), VECTOR, "loss"),
    "hooked": (lambda: hooked(), VECTOR, "hooks"),
    "masked": (lambda: layers.Masking(), SEQUENCE, "masks"),
    "iterated": (
        lambda: layers.SpectralNormalization(layers.Dense(3)),
        VECTOR,
        "torch.Tensor.__bool__",
    ),
}


class Own(layers.Layer):
    """Does something else in every call."""

    count = 0

    def call(self, x: Any) -> Any:
        self.count += 1
        return x * self.count


def hooked() -> keras.Layer:
    layer = layers.Dense(2)
    layer.register_forward_hook(lambda module, given, found: found * 3)
    return layer


@pytest.fixture(autouse=True)
def float32() -> None:
    keras.config.set_dtype_policy("float32")
    keras.backend.set_floatx("float32")


@pytest.mark.parametrize("name", sample(MAKERS, 9))
def test_without_keras_all_is_the_same_bit_for_bit(name: str) -> None:
    make, shape = MAKERS[name]
    stage, _, model = twins(around(make, shape))
    for number in range(8):
        compare(
            stage, model, inputs_of(shape, number, 2 if number in (3, 6, 7) else 3), number not in (4, 5, 6), number
        )
    assert stage.left_to_keras() == {}
    assert all(each.replays.is_captured for each in stage._operations)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_keras_says_why(name: str) -> None:
    make, shape, reason = LEFT[name]
    stage, _, model = twins(around(make, shape))
    for number in range(4):
        stage.train()
        stage.seed(number)
        (found,) = stage([inputs_of(shape, number)])
        seed_layers(model, number)
        torch.manual_seed(number)
        right = model(inputs_of(shape, number), training=True)
        assert torch.equal(found["value"] if isinstance(found, dict) else found, right)
    (why,) = stage.left_to_keras().values()
    assert_names(why, reason)


def test_layers_that_are_set_otherwise_are_seen() -> None:
    inputs = keras.Input(VECTOR)
    drop = layers.Dropout(0.5)
    model = keras.Model(inputs, drop(layers.Dense(200, kernel_initializer="ones")(inputs)))
    stage = stage_of(model)

    def share_of_zeros() -> float:
        stage.train()
        (found,) = stage([torch.ones(20, 6)])
        return float((found == 0).float().mean())

    assert all(0.4 < share_of_zeros() < 0.6 for _ in range(4))
    assert all(each.replays.is_captured for each in stage._operations)
    drop.rate = 0.9
    assert all(0.8 < share_of_zeros() < 1 for _ in range(4))
    drop.register_forward_hook(lambda module, given, found: found * 0)
    assert share_of_zeros() == 1
    assert_names(stage.left_to_keras()[drop.name], "hooks")
    model.set_weights([each * 0 + 2 for each in model.get_weights()])
    stage.train(False)
    assert not bool(stage([torch.ones(1, 6)])[0].any())


def test_a_layer_that_is_adapted_again_is_seen() -> None:
    scale = layers.Normalization()
    scale.adapt(np.arange(6.0).reshape(1, 6))
    inputs = keras.Input(VECTOR)
    model = keras.Model(inputs, layers.Dense(2)(scale(inputs)))
    stage = stage_of(model)
    for number in range(6):
        if number in (3, 5):
            scale.adapt(np.random.default_rng(number).normal(size=(9, 6)))
        stage.train()
        x = inputs_of(VECTOR, number)
        assert torch.equal(stage([x])[0], model(x, training=True))


class Half(keras.regularizers.Regularizer):
    def __call__(self, weight: Any) -> Any:
        return 0.5 * keras.ops.sum(weight)


def test_regularizers_without_keras() -> None:
    penalty = keras.regularizers.L1L2(0.1, 0.2)
    model = keras.Sequential([keras.Input(VECTOR), layers.Dense(3, kernel_regularizer=penalty), layers.Dense(2)])
    for factors in ((0.1, 0.2), (0.3, 0.4)):
        penalty.l1, penalty.l2 = factors
        stage = stage_of(model)
        for number in range(4):
            model.layers[0].kernel.assign(inputs_of((3,), number, 6))
            stage.train()
            (right,) = model.losses
            found = stage.extra_loss()
            assert found is not None and torch.equal(found, right)
            weight = model.layers[0].kernel.value
            for mine, theirs in zip(
                torch.autograd.grad(found, weight), torch.autograd.grad(right, weight), strict=True
            ):
                assert torch.equal(mine, theirs)
    penalty.l1 = 7.0
    stage.train()
    assert torch.equal(stage.extra_loss(), model.losses[0])
    model.layers[0].trainable = False
    assert stage.extra_loss() is None
    model.layers[1].kernel.regularizer = Half()
    for _ in range(3):
        assert torch.equal(stage.extra_loss(), model.layers[1].kernel.value.sum() * 0.5)
    assert set(stage.left_to_keras().values()) == {"Half is a class of your own"}


def test_calls_that_differ_the_second_time_are_left_to_keras() -> None:
    added = iter((1.0, 2.0, 3.0, 4.0))
    replay = OperationReplay(ModelParts([], []), None)
    results = [replay.run([torch.zeros(2)], lambda tensors: [tensors[0] + next(added)]) for _ in range(3)]
    assert [float(found[0][0]) for found in results] == [1, 3, 4]  # the comparison used 2
    assert replay.captured is None
    assert replay.obstacle == "its torch calls depend on more than the shapes of its tensors"


def test_what_a_failing_call_leaves_is_the_gradient_mode_as_it_was() -> None:
    x = torch.zeros(2)
    with Capture([x]) as capture:
        with torch.no_grad():
            y = x.reshape(2, 1)
        z = y + 1
    captured = capture.finish([z])
    assert torch.equal(captured(torch.ones(2))[0], torch.full((2, 1), 2.0))
    with pytest.raises(RuntimeError):
        captured(torch.zeros(3))
    assert torch.is_grad_enabled()


def test_containers_constants_and_several_results() -> None:
    x, other = torch.arange(12.0).reshape(3, 4), torch.arange(3)
    with Capture([x]) as capture:
        largest, places = x.max(dim=1)
        first, *_ = torch.split(x, [1, 3], dim=1)
        picked = x[other, 1:3]
        joined = torch.cat([first, picked], dim=-1)
        joined[0, ...] = -0.5
        scaled = joined * np.float32(2) + float("inf")
        moved = x + torch.as_tensor(np.arange(4.0), dtype=torch.float32)
    captured = capture.finish([largest, places, scaled, moved])
    y = torch.randn(3, 4)
    found = captured(y)
    assert torch.equal(found[0], y.max(dim=1).values) and torch.equal(found[1], y.max(dim=1).indices)
    assert bool(found[2].isinf().all()) and torch.equal(found[3], y + torch.arange(4.0))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda x: x * float(x[0]), "torch.Tensor.__float__"),
        (lambda x: x + torch.from_numpy(x.numpy()), "torch.Tensor.numpy"),
        (lambda x: x if x.sum() > 0 else -x, "torch.Tensor.__bool__"),
        (lambda x: torch.bernoulli(x, generator=torch.Generator()), "Generator"),
        (lambda x: x / x.nonzero().shape[0], "torch.Tensor.nonzero"),
        (lambda x: x / len(x[x > 0]), "torch.Tensor.__getitem__"),
        (lambda x: 3, "int"),
    ],
)
def test_what_depends_on_content_is_not_captured(call: Callable[[torch.Tensor], Any], reason: str) -> None:
    x = torch.ones(2)
    with Capture([x]) as capture:
        found = call(x)
    with raises(Obstacle, names=reason):
        capture.finish([found])


def test_tensors_of_many_shapes_go_through_keras() -> None:
    stage, _, model = twins(around(lambda: layers.Dense(2), (None, 4)))
    for length in [*range(1, 20), 19, 19, 1, 1, 1]:
        compare(stage, model, inputs_of((length, 4), length), True, length)
    assert stage._operations[0].replays.is_captured


def trained(comm: hk.Communicator) -> dict[str, Any]:
    found = {}
    for eager in (False, True):
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input((6, 6, 1)),
                *(layers.Conv2D(3, 3), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.3)),
                *(layers.Flatten(), layers.Dropout(0.3, seed=1), layers.Dense(3)),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=eager)
        values = np.random.default_rng(0)
        x, y = values.normal(size=(44, 6, 6, 1)).astype("float32"), values.integers(3, size=44)
        options = {"batch_size": 8, "epochs": 3, "num_micro_batches": 2, "validation_data": (x, y), "exact": True}
        history = fit(model, (x, y), comm=comm, timeout=30, verbose=False, **options)
        numbers = {name: value for name, value in history.history.items() if name != "samples_per_s"}
        found[eager] = (numbers, model.get_weights(), history.left_to_keras)
    return found


def test_a_training_is_that_with_keras_at_every_step() -> None:
    for found in hk.spawn(trained, 2, timeout=120):
        assert found[False][0] == found[True][0]
        for mine, right in zip(found[False][1], found[True][1], strict=True):
            np.testing.assert_array_equal(mine, right)
        ((layer, why),) = found[False][2].items()
        assert layer == "dropout_1"
        assert_names(why, "torch.Tensor.__int__")
        assert found[True][2] == {}


def after_other_calls(comm: hk.Communicator) -> list[np.ndarray]:
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), layers.Dropout(0.5, seed=1), layers.Dense(2), layers.Dropout(0.5)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)
    for _ in range(comm.rank):
        model(x, training=True)  # draws, on rank 1 alone
    fit(model, (x, y), batch_size=4, num_micro_batches=2, comm=comm, timeout=30, verbose=False)
    generators = [each for layer in model._flatten_layers() for each in layer._seed_generators]
    return [keras.ops.convert_to_numpy(each.state) for each in generators]


def test_counters_of_seeds_are_those_of_rank_0() -> None:
    first, second = hk.spawn(after_other_calls, 2, timeout=100)
    assert len(first) == 2
    np.testing.assert_array_equal(first, second)
