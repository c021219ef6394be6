"""Data, models, losses, metrics and callbacks as users write them for Keras."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

from .like_keras import chain

layers, ops = keras.layers, keras.ops


def arrays(num_samples: int = 10) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(4)
    return generator.normal(size=(num_samples, 4)).astype("float32"), generator.random((num_samples, 2)).astype(
        "float32"
    )


def classes() -> tuple[np.ndarray, np.ndarray]:
    x, y = arrays()
    return x, (y[:, 0] > 0.6).astype("int64")


def classifier() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(6, activation="relu"), layers.Dense(2, "softmax")])


class Shuffled(keras.utils.PyDataset):
    """Batches in an order that changes when an epoch ends."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._order = np.arange(10)
        self._generator = np.random.default_rng(0)
        self.told: list[str] = []

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> Any:
        chosen = self._order[4 * number : 4 * number + 4]
        return tuple(each[chosen] for each in arrays())

    def on_epoch_begin(self) -> None:
        self.told.append("begin")

    def on_epoch_end(self) -> None:
        self.told.append("end")
        self._generator.shuffle(self._order)


class Orderly(Shuffled):
    """Batches in a fixed order, which several threads may read ahead."""

    def on_epoch_end(self) -> None:
        self.told.append("end")


class Classes(Shuffled):
    def __getitem__(self, number: int) -> Any:
        chosen = self._order[4 * number : 4 * number + 4]
        return tuple(each[chosen] for each in classes())


def endless() -> Iterator[Any]:
    while True:
        for first in (0, 4, 8):
            yield tuple(each[first : first + 4] for each in arrays())


def loader() -> Any:
    dataset = torch.utils.data.TensorDataset(*map(torch.from_numpy, arrays()))
    return torch.utils.data.DataLoader(dataset, batch_size=4)


class Penalty(keras.Layer):
    """The only layer that adds to the loss."""

    def call(self, value: Any) -> Any:
        self.add_loss(ops.mean(ops.square(value - 1.0)))
        return value


def of_few_bits(policy: str) -> keras.Model:
    keras.config.set_dtype_policy(policy)
    try:
        return keras.Sequential([keras.Input((4,)), layers.Dense(8, activation="tanh"), layers.Dense(2)])
    finally:
        keras.config.set_dtype_policy("float32")


def dropping() -> keras.Model:
    """Return a model that draws random numbers without effect."""
    noise = [layers.Dropout(1e-9), layers.GaussianNoise(1e-9)]
    return keras.Sequential([keras.Input((4,)), noise[0], layers.Dense(4), noise[1], layers.Dense(2)])


def of_one_output(size: int) -> keras.Model:
    """Return a model whose output is a list of one."""
    inputs = keras.Input((4,))
    return keras.Model(inputs, [layers.Dense(size)(layers.Dense(3)(inputs))])


def of_names() -> keras.Model:
    """Return a model with names of outputs that no layer has."""
    inputs = keras.Input((4,))
    return keras.Model(inputs, {"a": layers.Dense(2)(inputs), "b": layers.Dense(2)(layers.Dense(3)(inputs))})


class Several(keras.metrics.Metric):
    """A metric with two numbers and their names."""

    def __init__(self) -> None:
        super().__init__(name="several")
        self.sum = self.add_variable((), "zeros", name="sum")

    def update_state(self, y: Any, output: Any, sample_weight: Any = None) -> None:
        self.sum.assign(self.sum + ops.sum(output))

    def result(self) -> Any:
        return {"once": ops.convert_to_tensor(self.sum), "twice": 2 * self.sum}


class Moded(keras.Layer):
    """Reads torch's training mode, which Keras does not change."""

    def call(self, value: Any) -> Any:
        return 1.25 * value if self.training else value


def moded() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(4), Moded(), layers.Dense(2), Moded()])


class Sum(keras.Layer):
    """Adds a sum to the loss."""

    def call(self, value: Any) -> Any:
        self.add_loss(ops.sum(ops.square(value)))
        return value


class Measured(keras.Layer):
    """A layer with its own metric."""

    def __init__(self) -> None:
        super().__init__()
        self.metric = keras.metrics.Mean(name="kl")

    def call(self, value: Any) -> Any:
        return value


class Dependent(keras.losses.MeanSquaredError):
    """A subclass of a Keras loss with another call."""

    def call(self, y: Any, output: Any) -> Any:
        return super().call(y, output) * ops.max(ops.abs(output))


def penalized_by_sums() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(4), Sum(), layers.Dense(2)])


def measured() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(4), Measured(), layers.Dense(2)])


class Either(keras.Layer):
    """Takes one input, or two."""

    def call(self, value: Any, other: Any = None) -> Any:
        return value if other is None else value + other


def with_an_optional_input() -> keras.Model:
    given, other = keras.Input((4,)), keras.Input((4,), optional=True)
    return keras.Model([given, other], layers.Dense(2)(layers.Dense(3)(Either()(given, other))))


def two_outputs() -> keras.Model:
    inputs = keras.Input((4,))
    return keras.Model(inputs, [layers.Dense(2)(inputs), layers.Dense(2)(layers.Dense(3)(inputs))])


def penalized_alone() -> keras.Model:
    given = keras.Input((4,))
    return keras.Model(given, Penalty()(layers.Dense(3)(layers.Dense(4)(given))))


def f1(y: Any, output: Any) -> Any:
    """Return one number for a batch, which is not a mean over its parts."""
    output = ops.cast(output > 0.5, "float32")
    hits = ops.sum(y * output)
    return 2 * hits / (ops.sum(y) + ops.sum(output) + 1e-7)


def apart(y: Any, output: Any) -> Any:
    """Return for each sample a number that depends on all samples."""
    return ops.mean(ops.abs(y - output), axis=-1) * ops.max(output)


def furthest(y: Any, output: Any) -> Any:
    return ops.max(ops.abs(ops.cast(y, output.dtype) - output))


class Swing(keras.metrics.Metric):
    """The difference of each batch from the previous batch: it depends on the order."""

    def __init__(self, name: str = "swing") -> None:
        super().__init__(name=name)
        self.last = self.add_variable((), "zeros", name="last")
        self.sum = self.add_variable((), "zeros", name="sum")

    def update_state(self, y: Any, output: Any, sample_weight: Any = None) -> None:
        mean = ops.mean(output)
        self.sum.assign(self.sum + ops.abs(mean - self.last))
        self.last.assign(mean)

    def result(self) -> Any:
        return ops.convert_to_tensor(self.sum)


def dice(y: Any, output: Any) -> Any:
    """Return one number for a batch, as a loss."""
    hits = ops.sum(y * output)
    return 1 - (2 * hits + 1) / (ops.sum(y) + ops.sum(output) + 1)


class Noting(keras.callbacks.Callback):
    """Records all its calls and their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def set_params(self, params: Any) -> None:
        self.calls.append(("params", {name: params[name] for name in ("epochs", "steps")}))


def _noting(name: str) -> Callable[..., None]:
    def note(self: Noting, *arguments: Any, logs: Any = None) -> None:
        *places, last = arguments if arguments and isinstance(arguments[-1], dict) else (*arguments, logs)
        numbers = {key: np.array(value).tolist() for key, value in (last or {}).items()}
        self.calls.append((name, places, numbers))

    return note


for _name in ("train_begin", "train_end", "epoch_begin", "epoch_end", "train_batch_begin", "train_batch_end",
              "test_begin", "test_end", "test_batch_begin", "test_batch_end"):  # fmt: skip
    setattr(Noting, f"on_{_name}", _noting(_name))


class Looking(keras.callbacks.Callback):
    """Predicts, evaluates, reads and saves within an epoch and after it: the model, parts of it, and another model."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.seen: list[float] = []
        self._folder = folder
        self._other = chain()
        self._other.compile("sgd", "mse")

    def _look(self) -> None:
        x, y = arrays()
        model = self.model
        part = keras.Model(model.inputs, model.layers[0].output)
        model.save(self._folder / "whole.keras")
        model.save_weights(self._folder / "whole.weights.h5")
        loaded = keras.models.load_model(self._folder / "whole.keras")
        self.seen += [
            float(np.sum(model.get_weights()[2])),
            *(float(each) for each in model.evaluate(x, y, verbose=0)),
            float(part.predict(x, verbose=0).sum()),
            float(loaded.predict(x, verbose=0).sum()),
            float(self._other.evaluate(x, y, verbose=0)),
        ]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1:
            self._look()
            self.seen.append(float(sum(p.abs().sum() for p in self.model.parameters())))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._look()


class Predicting(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.seen = [*getattr(self, "seen", []), float(self.model.predict(arrays()[0], verbose=0).sum())]


class Clipping(keras.callbacks.Callback):
    """Writes to variables that other ranks train, within an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for each in self.model.trainable_variables:
            each.assign(ops.clip(each, -0.5, 0.5))


class Curtailing(keras.callbacks.Callback):
    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_evaluating = batch == 1
