"""Regressions: cases in which replayed operations once gave other numbers, or errors."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from hocket.keras.capture import Capture
from hocket.keras.parts import ModelParts
from hocket.keras.replay import OperationReplay

from ..naming import names_value
from .replaying import around, compare, inputs_of, stage_of, twins

pytestmark = pytest.mark.timeout(200)

layers, ops = keras.layers, keras.ops
VECTOR = (6,)


@pytest.fixture(autouse=True)
def float32() -> Any:
    keras.config.set_dtype_policy("float32")
    keras.backend.set_floatx("float32")
    yield
    keras.config.set_dtype_policy("float32")


def model_of(*parts: Any) -> Callable[[], keras.Model]:
    """Return a function that makes a model that calls parts one after the other; functions make the layers."""

    def make() -> keras.Model:
        inputs = value = keras.Input(VECTOR)
        for part in parts:
            value = part()(value) if part in MAKERS else part(value)
        return keras.Model(inputs, value)

    return make


def dense() -> keras.Layer:
    return layers.Dense(6, activation="relu", kernel_regularizer=keras.regularizers.L1(0.5))


def dropout() -> keras.Layer:
    return layers.Dropout(0.5)


def int8() -> keras.Layer:
    layer = layers.Dense(6)
    layer.build((None, 6))
    layer.enable_lora(2)
    layer.quantize("int8")
    return layer


def nested(operation: Callable[[Any], Any]) -> Callable[[], keras.Layer]:
    def make() -> keras.Layer:
        inputs = keras.Input(VECTOR)
        return keras.Model(inputs, operation(layers.Dense(6)(inputs)))

    return make


def recomputed() -> keras.Layer:
    with keras.RematScope(mode="full"):
        return layers.Dense(6)


class Counting(keras.Operation):
    count = 0

    def call(self, x: Any) -> Any:
        self.count += 1
        return x * self.count

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor(x.shape, x.dtype)


class Warming(layers.Layer):
    """Returns its input unchanged in the first calls."""

    count = 0

    def call(self, x: Any) -> Any:
        self.count += isinstance(x, torch.Tensor) and x.device.type == "cpu"
        return x if self.count < 4 else -x


def counted() -> keras.Layer:
    return nested(Counting())()


def wrapped() -> keras.Layer:
    torch.manual_seed(1)
    return layers.TorchModuleWrapper(torch.nn.BatchNorm1d(6), output_shape=(None, 6))


def in_place() -> keras.Layer:
    return layers.TorchModuleWrapper(torch.nn.ELU(inplace=True), output_shape=(None, 6))


def of_torch() -> keras.Layer:
    return layers.Dense(6, activation=torch.nn.Softplus())


def mapped() -> keras.Layer:
    return nested(lambda x: ops.vectorized_map(lambda row: row * 2, x))()


MAKERS = [dense, dropout, int8, recomputed, counted, wrapped, in_place, of_torch, mapped]
LEFT: dict[str, tuple[Callable[[], keras.Model], str]] = {
    "custom gradient": (
        model_of(dense, lambda x: keras.quantizers.fake_quant_with_min_max_vars(x, -0.5, 0.5)),
        "backward",
    ),
    "quantized": (model_of(int8), "backward"),
    "recomputed": (model_of(recomputed), "backward"),
    "sorted": (
        model_of(lambda x: x * ops.cast(ops.argpartition(x, 2), "float32")),
        "vmap",
    ),
    "mapped": (model_of(mapped), "'vectorized_map'"),
    "operation": (model_of(counted), "Counting"),
    "module": (model_of(wrapped), "torch"),
    "module in place": (model_of(lambda x: x + 1.0, in_place), "torch"),
    "activation": (model_of(of_torch), "torch"),
}


@pytest.mark.parametrize("name", LEFT)
def test_keras_does_it_every_time(name: str) -> None:
    make, reason = LEFT[name]
    stage, _, model = twins(make)
    for number in range(5):
        compare(stage, model, inputs_of(VECTOR, number), number < 4, number)
    assert any(names_value(each, reason) for each in stage.left_to_keras().values()), stage.left_to_keras()


def set_policy(layer: Any) -> None:
    layer.dtype_policy = "mixed_bfloat16"


def set_penalty(layer: Any) -> None:
    layer.kernel_regularizer.l1 = np.float64(layer.kernel_regularizer.l1) + 1


def set_call(layer: Any) -> None:
    layer.call = lambda x, training=None: x * 3


# Two changes each, of the last layer of a model.
CHANGES: dict[str, tuple[Callable[[], keras.Layer], Callable[[Any, int], None]]] = {
    "rate": (dropout, lambda layer, time: setattr(layer, "rate", np.linspace(0.2, 0.8, 3)[time])),
    "activation": (dense, lambda layer, time: setattr(layer, "activation", [ops.tanh, keras.activations.gelu][time])),
    "policy": (dense, lambda layer, time: set_policy(layer)),
    "call": (dense, lambda layer, time: set_call(layer)),
    "bias": (dense, lambda layer, time: setattr(layer, "bias", None)),
    "attribute": (
        dense,
        lambda layer, time: delattr(layer, "_autographed") if time else setattr(layer, "_autographed", 1),
    ),
    "trainable": (layers.BatchNormalization, lambda layer, time: setattr(layer, "trainable", bool(time))),
    "list": (
        lambda: layers.Rescaling([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        lambda layer, time: layer.scale.__setitem__(time, 9.0),
    ),
    "nested": (
        nested(lambda x: ops.clip(x, -0.5, 0.5)),
        lambda layer, time: setattr(layer.operations[-1], "x_max", 0.1),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_set_between_steps_is_seen(name: str) -> None:
    make, change = CHANGES[name]
    stage, own, model = twins(around(make, VECTOR))
    for number in range(12):
        if number in (4, 8):
            for each in (own, model):
                change(each.layers[-1], number // 4 - 1)
        compare(stage, model, inputs_of(VECTOR, number), True, number)


def test_penalties_that_are_set_between_steps_are_seen() -> None:
    model = keras.Sequential([keras.Input(VECTOR), dense()])
    stage = stage_of(model)
    for number in range(12):
        if number % 4 == 3:
            set_penalty(model.layers[0])
        stage.train()
        found = stage.extra_loss()
        assert found is not None and torch.equal(found, model.losses[0])


def test_classes_that_are_changed_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, _, model = twins(around(layers.ReLU, VECTOR))
    for number in range(8):
        if number == 4:
            monkeypatch.setattr(layers.ReLU, "call", lambda self, x: x * 5)
        compare(stage, model, inputs_of(VECTOR, number), True, number)
    assert "ReLU has a call of your own" in stage.left_to_keras().values()


def test_another_type_of_the_whole_model_is_seen() -> None:
    stage, own, model = twins(around(lambda: layers.Dense(3), VECTOR))
    for number in range(8):
        if number == 4:
            for each in (own, model):
                each.double()
        stage.train()
        assert torch.equal(stage([inputs_of(VECTOR, number)])[0], model(inputs_of(VECTOR, number), training=True))


def test_a_tensor_that_comes_twice_at_first() -> None:
    def make() -> keras.Model:
        inputs = keras.Input(VECTOR)
        value = layers.Dense(6)(inputs)
        return keras.Model(inputs, layers.Add()([value, Warming()(value)]))

    stage, _, model = twins(make)
    for number in range(10):
        compare(stage, model, inputs_of(VECTOR, number), True, number)


def test_a_shared_layer_is_captured_in_both_places() -> None:
    def make() -> keras.Model:
        inputs = keras.Input(VECTOR)
        twice = layers.Dense(6)
        return keras.Model(inputs, twice(ops.relu(twice(inputs))))

    stage, _, model = twins(make)
    for number in range(5):
        compare(stage, model, inputs_of(VECTOR, number), True, number)
    assert all(each.replays.is_captured for each in stage._operations)


def test_an_interruption_while_it_is_compared_leaves_nothing() -> None:
    variable = keras.Variable(torch.zeros(2), trainable=False)

    def by_keras(tensors: Any) -> list[torch.Tensor]:
        variable.assign(variable.value + 1)
        if interrupts:
            torch.rand(1)
            raise KeyboardInterrupt
        return [tensors[0] * 2]

    replay = OperationReplay(ModelParts([], [variable]), None)
    interrupts = False
    replay.run([torch.ones(2)], by_keras)
    before, interrupts = torch.get_rng_state(), True
    with pytest.raises(KeyboardInterrupt):
        replay.run([torch.ones(2)], by_keras)
    assert variable.value.tolist() == [1, 1] and torch.equal(before, torch.get_rng_state())
    interrupts = False
    assert replay.run([torch.ones(2)], by_keras)[0].tolist() == [2, 2]
    assert variable.value.tolist() == [2, 2]


class Living(TorchFunctionMode):
    """Counts the results that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Any] = []
        self.most = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.results.append(weakref.ref(found))
        self.most = max(self.most, sum(each() is not None for each in self.results))
        return found


def test_what_is_not_used_any_more_is_let_go() -> None:
    x = torch.ones(3)
    with Capture([x]) as capture:
        y = x
        for _ in range(20):
            y = torch.sin(y)
    captured = capture.finish([y])
    del capture
    with torch.no_grad(), Living() as living:
        captured(x)
    assert len(living.results) == 20 and living.most <= 3


def test_what_keras_does_of_a_slice_and_not_of_a_copy_is_left_to_keras() -> None:
    """For one sample, torch's transposed convolution takes another path if the gradient has other strides."""

    def make() -> keras.Model:
        inputs = keras.Input((6, 6, 3))
        first = ops.split(inputs, [1], axis=-1)[0]
        return keras.Model(inputs, layers.Conv2DTranspose(3, 2, strides=2)(first))

    stage, _, model = twins(make)
    stage.train(True)
    for seed in range(4):
        x = inputs_of((6, 6, 3), seed, 1)
        assert torch.equal(stage([x])[0], model(x, training=True))
    assert stage.left_to_keras()
