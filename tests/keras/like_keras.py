"""Compiled models with all features of Keras, trained by Keras and by hocket on the same ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

from hocket import pipeline
from hocket.comm import Communicator
from hocket.errors import HocketError
from hocket.keras import fit, graph_of_keras
from hocket.keras.losses import loss_of
from hocket.keras.update import KerasUpdate
from hocket.train import PipelineExecutor, Trainer, source_of

layers = keras.layers


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(8, 4)).astype("float32"), generator.normal(size=(8, 2)).astype("float32")
    return x, y, np.array([1, 1, 1, 1, 5, 5, 5, 5], "float32")


def tokens() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(2)
    words = generator.integers(1, 7, (8, 5)).astype("int32")
    words[:4, 1:] = 0
    return words, np.where(words > 0, generator.integers(1, 3, (8, 5)), 0)


def chain() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.Dense(2)])


def masked() -> keras.Model:
    return keras.Sequential(
        [keras.Input((5,), dtype="int32"), layers.Embedding(7, 4, mask_zero=True), layers.Dense(4), layers.Dense(3)]
    )


def penalized() -> keras.Model:
    penalty = keras.regularizers.L2(0.5)
    dense = keras.layers.Dense(6, kernel_regularizer=penalty)
    return keras.Sequential([keras.Input((4,)), dense, keras.layers.Dense(2)])


def partly_frozen() -> keras.Model:
    model = chain()
    model.layers[0].trainable = False
    return model


def mixed_types() -> keras.Model:
    """Return a model in which an embedding takes its type from the model, and a dense layer has its own."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        inputs = keras.Input((3,), dtype="int32")
        hidden = keras.layers.Flatten()(keras.layers.Embedding(9, 4)(inputs))
        return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(4)(hidden)))
    finally:
        keras.config.set_dtype_policy("float32")


def widened() -> keras.Model:
    """Return a model with a repeat, which cannot run on tensors without content."""
    layers = [keras.layers.BatchNormalization(), keras.layers.RepeatVector(2), keras.layers.Flatten()]
    return keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(2)])


def of_numbers() -> keras.Model:
    inputs = keras.Input(())
    return keras.Model(inputs, keras.layers.Dense(2)(keras.ops.stack([inputs, inputs * 2], -1)))


def spectral() -> keras.Model:
    layers = [keras.layers.SpectralNormalization(keras.layers.Dense(6)), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((4,)), *layers])


def stateful() -> keras.Model:
    inner = keras.Sequential([keras.Input((4, 1), batch_size=4), keras.layers.SimpleRNN(2, stateful=True)])
    return keras.Sequential([keras.Input((4,), batch_size=4), keras.layers.Reshape((4, 1)), inner])


def shared() -> keras.Model:
    """Return a model with a layer that adds to the loss and is called twice."""
    given = keras.Input((4,))
    twice = layers.Dense(4, activity_regularizer=keras.regularizers.L2(0.1))
    return keras.Model(given, layers.Dense(2)(twice(twice(given))))


def shared_norm() -> keras.Model:
    given = keras.Input((4,))
    norm = layers.BatchNormalization()
    return keras.Model(given, layers.Dense(2)(norm(layers.Dense(4)(norm(layers.Dense(4)(given))))))


def shared_scale() -> keras.Model:
    given, other = keras.Input((4,)), keras.Input((4,))
    scale = layers.Normalization(mean=1.0, variance=4.0)
    value = layers.Dense(4)(scale(given))
    return keras.Model([given, other], layers.Dense(2)(keras.layers.Add()([value, scale(other)])))


def forked() -> keras.Model:
    given = keras.Input((4,))
    value = layers.Dense(4)(given)
    return keras.Model(given, {"a": layers.Dense(2, name="a")(value), "b": layers.Dense(2, name="b")(value)})


class Warming(keras.callbacks.Callback):
    """Sets the learning rate before every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.batches.append(batch)
        self.model.optimizer.learning_rate = 0.05 if len(self.batches) % 2 else 0.0005


class Loading(keras.callbacks.Callback):
    """Sets weights when a training, or its second epoch, begins."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.set_weights([np.full_like(each, 0.5) for each in self.model.get_weights()])

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.set_weights([each / 2 for each in self.model.get_weights()])


def lambdas() -> keras.callbacks.Callback:
    """Return a callback made of functions, which Keras sets as attributes of the callback."""
    rates = iter((0.03, 0.01))
    callback: keras.callbacks.Callback

    def set_rate(epoch: int, logs: Any) -> None:
        callback.model.optimizer.learning_rate = next(rates)

    callback = keras.callbacks.LambdaCallback(on_epoch_begin=set_rate)
    return callback


class Setting(keras.callbacks.Callback):
    """Changes settings of layers and of the optimizer, and variables, between epochs."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.layers[0].kernel_regularizer.l2 = np.float32(2.0).item()
            self.model.optimizer.momentum = 0.9

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for each in self.model.optimizer.momentums:
            each.assign(each / 2)
        logs["twice the loss"] = 2 * logs["loss"]


class Freezing(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.layers[0].trainable = False


class Halving(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        kernel = self.model.layers[0].kernel
        kernel.assign(kernel / 2)


class Compiling(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.compile(sgd(), "mae")


class Failing(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        raise RuntimeError("the disk is full")


class Stopping(keras.callbacks.Callback):
    """Ends the training within an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = batch == 0


class StoppingAtOnce(keras.callbacks.Callback):
    """Ends the training before it begins: Keras trains one batch."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.stop_training = True


class Remembering(keras.callbacks.Callback):
    """Reads the history of earlier epochs."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["before"] = float(len(self.model.history.epoch) + sum(self.model.history.history.get("loss", [])))


class Counted:
    """A generator of batches that counts the batches that were read."""

    def __init__(self) -> None:
        self.num_read = 0

    def __iter__(self) -> Iterator[Any]:
        x, y, _ = data()
        for _ in range(6):
            self.num_read += 1
            yield x[:4], y[:4]


def num_read(comm: Communicator) -> tuple[int, int]:
    """Return the number of batches that Keras and hocket read if a callback ends the training after the first one."""
    read = []
    for is_split in (False, True):
        counted = Counted()
        model = chain()
        model.compile(sgd(), "mse")
        if is_split:
            fit(model, iter(counted), comm=comm, callbacks=[Stopping()], num_micro_batches=2, verbose=False)
        else:
            model.fit(iter(counted), callbacks=[Stopping()], verbose=0)
        read.append(comm.broadcast_object(counted.num_read, 0))
    return read[0], read[1]


def unbuilt() -> keras.Model:
    """Return a model without an input shape, which the first batch determines."""
    start = keras.initializers.GlorotUniform(seed=3)
    return keras.Sequential([keras.layers.Dense(5, "tanh", kernel_initializer=start), keras.layers.Dense(2)])


def of_pictures() -> keras.Model:
    """Return a model without an input shape, whose first layer needs three axes besides the batch."""
    return keras.Sequential([keras.layers.Conv2D(2, 3), keras.layers.Flatten(), keras.layers.Dense(2)])


def is_built_by_what_is_refused() -> bool:
    model = unbuilt()
    model.compile(sgd(), "mse")
    x, y, _ = data()
    refusal(lambda: fit(model, x, y, epochs=-1))
    return bool(model.built)


class Jump(torch.utils.data.Dataset[Any]):
    """Samples one by one."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> Any:
        x, y, _ = data()
        return x[number], y[number]


def sgd(**options: Any) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.5, **options)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"loss": lambda: keras.losses.MeanSquaredError(reduction="sum")},
    "by weights": {
        "loss": lambda: keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        "data": lambda: data(),
    },
    "weights of a batch are 0": {
        "loss": lambda: keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        "data": lambda: (*data()[:2], np.repeat(np.float32([1, 0]), 4)),
    },
    "spectral": {"make": spectral, "options": {"num_micro_batches": 1}},
    "masked": {
        "make": masked,
        "loss": lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "data": tokens,
        "options": {"weigh": lambda y, _: float((y > 0).sum())},
    },
    "shared": {"make": shared},
    "averaged": {"optimizer": lambda: sgd(use_ema=True, ema_momentum=0.5)},
    "overwritten": {"optimizer": lambda: sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)},
    "accumulated": {"optimizer": lambda: sgd(gradient_accumulation_steps=2)},
    "clipped": {"optimizer": lambda: sgd(global_clipnorm=0.1)},
    "warming": {"callbacks": Warming},
    "loading": {"callbacks": Loading},
    "stopping": {"callbacks": Stopping},
    "stopping at once": {"callbacks": StoppingAtOnce},
    "remembering": {"callbacks": Remembering},
    "unbuilt": {"make": unbuilt},
    "lambdas": {"callbacks": lambdas},
    "setting": {"make": penalized, "callbacks": Setting},
    "halving": {"callbacks": Halving, "options": {"strategy": "data"}},
    "halving in a pipeline": {"callbacks": Halving},
    "plateau": {"callbacks": lambda: keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=9.0)},
    "swapped": {
        "optimizer": lambda: sgd(use_ema=True, ema_momentum=0.5),
        "callbacks": keras.callbacks.SwapEMAWeights,
    },
    "scaled": {"optimizer": lambda: sgd(loss_scale_factor=8.0)},
    "counting": {"make": partly_frozen, "optimizer": lambda: keras.optimizers.Nadam(0.05)},
    "evaluated before": {
        "metrics": lambda: ["mae"],
        "prepare": lambda model: model.evaluate(*data()[:2], verbose=0),
    },
    "mixed types": {
        "make": mixed_types,
        "data": lambda: (np.arange(24).reshape(8, 3) % 9, data()[1]),
        "options": {"num_micro_batches": 1},
    },
    "widened": {"make": widened, "options": {"num_micro_batches": 1}},
    "numbers": {"make": of_numbers, "data": lambda: (data()[0][:, :1], data()[1])},
    "forked sums": {
        "make": forked,
        "loss": lambda: {
            "a": keras.losses.MeanSquaredError(reduction="sum"),
            "b": keras.losses.MeanAbsoluteError(reduction="sum"),
        },
        "data": lambda: (data()[0], {"a": data()[1], "b": data()[1]}),
    },
    "one loss of two": {
        "make": forked,
        "loss": lambda: {"a": keras.losses.MeanSquaredError(reduction="sum"), "b": None},
        "data": lambda: (data()[0], {"a": data()[1], "b": data()[1]}),
    },
    "by class": {"metrics": lambda: [keras.metrics.F1Score()]},
    "forked": {
        "make": forked,
        "loss": lambda: {"a": "mse", "b": "mae"},
        "data": lambda: (data()[0], {"a": data()[1], "b": data()[1]}),
    },
}


def both(comm: Communicator, case: dict[str, Any]) -> dict[str, Any]:
    """Train by Keras and by hocket; return the numbers, and the difference of the weights."""
    found: dict[str, Any] = {}
    weights = []
    given = case.get("data", lambda: data()[:2])()
    for who in ("keras", "hocket"):
        keras.utils.set_random_seed(0)
        keras.utils.clear_session()
        model = case.get("make", chain)()
        model.compile(
            case.get("optimizer", sgd)(), case.get("loss", lambda: "mse")(), metrics=case.get("metrics", list)()
        )
        case.get("prepare", bool)(model)
        callbacks = [case["callbacks"]()] if "callbacks" in case else []
        common = {"batch_size": 4, "epochs": 2, "shuffle": False, "callbacks": callbacks, "validation_data": given}
        if who == "keras":
            x, y, *weight = given
            history = model.fit(x, y, sample_weight=weight[0] if weight else None, verbose=0, **common)
        else:
            common |= {"num_micro_batches": 2, "timeout": 30, "verbose": False, **case.get("options", {})}
            history = fit(model, given, comm=comm, **common)
        found[who] = {name: np.array(each).tolist() for name, each in history.history.items()}
        found[f"batches of {who}"] = getattr(callbacks[0], "batches", None) if callbacks else None
        weights.append(model.get_weights())
    found["distance"] = max(float(np.abs(a - b).max()) for a, b in zip(*weights, strict=True))
    return found


def refusal(work: Callable[[], Any]) -> str:
    try:
        work()
    except HocketError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def saved(comm: Communicator, folder: Path) -> bool:
    """Return whether a training that was saved after a step and continues equals one that continues without a file."""
    x, y, _ = data()
    source = source_of((x, (y,)), comm, batch_size=4, shuffle=False, seed=0, drop_last=False)
    weights = []
    for resumes in (False, True):
        keras.utils.set_random_seed(0)
        keras.utils.clear_session()
        model = chain()
        model.compile(keras.optimizers.Adam(0.05), "mse")
        split = graph_of_keras(model).split([0, 1, 2])
        with PipelineExecutor(pipeline.build("1f1b", 2, 2), split, comm, loss_of(model)) as executor:
            trainer = Trainer(executor, KerasUpdate(model.optimizer, model.trainable_variables, executor))
            first, second = source.batches(0)
            if resumes:
                trainer.load(folder / "keras.pt")
            else:
                trainer.train_step(first)
                trainer.save(folder / "keras.pt")
            trainer.train_step(second)
            trainer.collect()
        weights.append(model.get_weights())
    return all(np.array_equal(a, b) for a, b in zip(*weights, strict=True))


def frozen_between(comm: Communicator) -> float:
    """Train, freeze a layer, train again, and continue with Keras; return the difference of the weights from a training
    by Keras only."""
    x, y, _ = data()
    weights = []
    for is_split in (False, True):
        keras.utils.set_random_seed(0)
        model = chain()
        model.compile(keras.optimizers.Adam(0.05), "mse")
        for trains_first in (True, False):
            model.layers[0].trainable = trains_first
            if is_split:
                fit(model, (x, y), comm=comm, batch_size=4, shuffle=False, num_micro_batches=2, verbose=False)
            else:
                model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        model.layers[0].trainable = True
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    return max(float(np.abs(a - b).max()) for a, b in zip(*weights, strict=True))


def like_keras(comm: Communicator, folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    keras.config.set_dtype_policy("float32")
    keras.backend.set_floatx("float32")
    found: dict[str, Any] = {name: both(comm, case) for name, case in CASES.items()}
    found["saved"] = saved(comm, folder)
    found["read"] = num_read(comm)
    found["built"] = is_built_by_what_is_refused()

    def trained(make: Callable[[], keras.Model], optimizer: Any, loss: Any, given: Any, **options: Any) -> Any:
        keras.utils.set_random_seed(0)
        model = make()
        model.compile(optimizer, loss)
        return fit(model, given, comm=comm, batch_size=8, num_micro_batches=2, timeout=30, verbose=False, **options)

    x, y, _ = data()
    found["frozen between"] = frozen_between(comm)
    found["dataset"] = (
        trained(chain, sgd(), "mse", Jump(), shuffle=False, seed=0).history["loss"],
        trained(chain, sgd(), "mse", [(x, y)], seed=0).history["loss"],
    )
    mixed = {"a": keras.losses.MeanSquaredError(reduction="sum"), "b": "mae"}
    try:
        trained(chain, sgd(), "mse", (x, y), callbacks=[Failing()])
    except RuntimeError as error:
        found["failing"] = str(error)
    found["refused"] = {
        "mixed": refusal(lambda: trained(forked, sgd(), mixed, (x, {"a": y, "b": y}))),
        "masked": refusal(lambda: trained(masked, sgd(), "sparse_categorical_crossentropy", tokens())),
        "accumulated": refusal(
            lambda: trained(chain, sgd(gradient_accumulation_steps=2, global_clipnorm=1.0), "mse", (x, y))
        ),
        "norm": refusal(lambda: trained(shared_norm, sgd(), "mse", (x, y), layers_per_partition=[3, 2])),
        "masked by weights": refusal(
            lambda: trained(
                masked,
                sgd(),
                keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight"),
                tokens(),
            )
        ),
        "scale": refusal(lambda: trained(shared_scale, sgd(), "mse", ((x, x), y), layers_per_partition=[2, 3])),
        "spectral": refusal(lambda: trained(spectral, sgd(), "mse", (x, y))),
        "dice": refusal(lambda: trained(chain, sgd(), "dice", (x, y))),
        "circle": refusal(lambda: trained(chain, sgd(), keras.losses.Circle(), (x, y))),
        "ignored": refusal(
            lambda: trained(chain, sgd(), keras.losses.SparseCategoricalCrossentropy(ignore_class=1), (x, y))
        ),
        "stateful": refusal(lambda: trained(stateful, sgd(), "mse", (x, y))),
        "freezing": refusal(lambda: trained(chain, sgd(), "mse", (x, y), callbacks=[Freezing()], epochs=2)),
        "compiling": refusal(lambda: trained(chain, sgd(), "mse", (x, y), callbacks=[Compiling()], epochs=2)),
        "seed": refusal(lambda: trained(chain, sgd(), "mse", (x, y), seed=comm.rank)),
        "weighing": refusal(lambda: trained(chain, sgd(), "mse", (x, y), weigh="a")),
        "shape": refusal(lambda: trained(of_pictures, sgd(), "mse", (x, y))),
        "no loss": refusal(lambda: trained(chain, sgd(), None, (x, y))),
    }
    return found
