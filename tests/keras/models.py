"""Keras models, trained by several ranks and by one process, on the torch backend."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

from hocket.comm import Communicator
from hocket.keras import fit, graph_of_keras
from hocket.pipeline import Action, PipelineSchedule, Placement
from hocket.train import MicroBatch, PipelineExecutor, random_key

SAMPLES, BATCH = 42, 12


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(SAMPLES, 8))
    y = (x.sum(1) > 0).astype("int64") + (x[:, 0] > 1)
    return x, y, generator.uniform(0.5, 2.0, SAMPLES)


def network(how: str = "") -> keras.Model:
    """Return a model with skips, a shared layer, regularizers and two uses of one value."""
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy("float64")  # floatx has no effect after a layer was made
    keras.backend.set_floatx("float64")
    inputs = keras.Input((8,))
    first = keras.layers.Dense(16, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-2))(inputs)
    shared = keras.layers.Dense(16, activation="tanh", kernel_regularizer=keras.regularizers.L1(1e-3))
    value = shared(first)
    value = keras.layers.Add()([value, first])
    if how == "dropout":
        value = keras.layers.Dropout(0.2)(value)
    value = keras.layers.Dense(16, activation="tanh", activity_regularizer=keras.regularizers.L2(1e-3))(value)
    value = shared(value)
    value = keras.layers.Concatenate()([value, first, keras.ops.abs(value)])
    model = keras.Model(inputs, keras.layers.Dense(3)(value))
    options: dict[str, Any] = {"clipped": {"global_clipnorm": 0.3}, "clipped each": {"clipnorm": 0.1}}.get(how, {})
    rate: Any = keras.optimizers.schedules.ExponentialDecay(0.02, 5, 0.7) if how == "decay" else 0.02
    model.compile(
        keras.optimizers.Adam(rate, weight_decay=1e-3 if how == "decay" else None, **options),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="weighted")],
    )
    return model


class Epochs(keras.callbacks.Callback):
    """Records the arguments of its calls, and halves the learning rate after the first epoch."""

    def __init__(self, halves: bool) -> None:
        super().__init__()
        self.calls: list[str] = []
        self._halves = halves

    def on_train_begin(self, logs: Any = None) -> None:
        self.calls.append("begin")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.calls.append(f"batch {batch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(f"epoch {epoch}")
        if self._halves and epoch == 0:
            self.model.optimizer.learning_rate = 0.01


def losses_of_one_process(epochs: int, how: str) -> tuple[list[float], list[np.ndarray]]:
    """Train by Keras on whole batches, in hocket's order; return losses and weights."""
    model = network(how)
    x, y, weight = data()
    losses = []
    for epoch in range(epochs):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).numpy()
        for first in range(0, SAMPLES, BATCH):
            chosen = order[first : first + BATCH]
            model.reset_metrics()
            found = model.train_on_batch(x[chosen], y[chosen], weight[chosen] if how == "weighted" else None)
            losses.append(float(found[0]))
        if how == "halved" and epoch == 0:
            model.optimizer.learning_rate = 0.01
    return losses, model.get_weights()


def train(comm: Communicator, how: str, epochs: int = 2, folder: Path | None = None, **options: Any) -> dict[str, Any]:
    """Train; return this rank's results."""
    torch.set_num_threads(1)
    model = network(how)
    x, y, weight = data()
    noted = Epochs(how == "halved")
    callbacks: list[keras.callbacks.Callback] = [noted] if how in ("halved", "saved") else []
    if how == "stopped":
        callbacks.append(
            keras.callbacks.EarlyStopping(monitor="loss", mode="max", patience=0, restore_best_weights=True)
        )
    if folder is not None:
        callbacks.append(keras.callbacks.ModelCheckpoint(folder / "model-{epoch}.keras"))
    losses: list[float] = []
    history = fit(
        model,
        (x, y, weight) if how == "weighted" else (x, y),
        epochs=epochs,
        batch_size=BATCH,
        validation_data=(x, y),
        callbacks=callbacks,
        comm=comm,
        timeout=60,
        verbose=False,
        **options,
    )
    return {
        "history": history.history,
        "epoch": history.epoch,
        "losses": losses,
        "weights": model.get_weights(),
        "calls": noted.calls,
        "optimizer": [np.array(each.value.detach()) for each in model.optimizer.variables],
    }


def train_all(comm: Communicator, cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [train(comm, **case) for case in cases]


def one_after_the_other(num_stages: int) -> PipelineSchedule:
    """Return a schedule with all stages on one rank and one micro-batch."""
    actions = [Action("F", stage, 0) for stage in range(num_stages)]
    actions += [Action("B", stage, 0) for stage in reversed(range(num_stages))]
    return PipelineSchedule("one", Placement(((0,) * num_stages,)), 1, (tuple(actions),))


def compare_application(
    comm: Communicator, name: str, size: int, all_stages: Sequence[int]
) -> dict[int, dict[str, Any]]:
    """Cut an application of Keras into stages; return the values that differ from those of the whole in a bit."""
    torch.set_num_threads(1)
    keras.config.set_dtype_policy("float32")
    keras.backend.set_floatx("float32")
    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=7)
    graph = graph_of_keras(model)
    x = torch.randn(2, size, size, 3)
    weights = torch.arange(7.0)
    before = [each.value.detach().clone() for each in model.variables]
    differences = {}
    for num_stages in all_stages:
        count = len(graph.layers)
        split = graph.split([round(number * count / num_stages) for number in range(num_stages + 1)])
        for number, stage in enumerate(split.stages):  # set the counters of random numbers, as the executor does
            stage.seed(random_key(0, 0, number, 0))
        output = model(x, training=True)
        wanted = torch.autograd.grad((output * weights).sum(), [each.value for each in model.trainable_variables])
        buffers = {each.path: each.value.detach().clone() for each in model.non_trainable_variables}
        for variable, value in zip(model.variables, before, strict=True):
            variable.assign(value)
        schedule = one_after_the_other(num_stages)
        with PipelineExecutor(schedule, split, comm, lambda given, _: (given * weights).sum(), exact=True) as executor:
            result = executor.step([MicroBatch({split.batch_inputs[0]: x})], keeps_outputs=True)
        gradients = [each.value.grad for each in model.trainable_variables]
        differences[num_stages] = {
            "output": not torch.equal(result.outputs[0], output),
            "gradients": [
                each.path
                for each, found, right in zip(model.trainable_variables, gradients, wanted, strict=True)
                if not torch.equal(found, right)
            ],
            "buffers": [
                each.path for each in model.non_trainable_variables if not torch.equal(each.value, buffers[each.path])
            ],
            "num_gradients": len(gradients),
            "num_hops": len(split.hops),
            "num_replayed": sum(each.replays.is_captured for stage in split.stages for each in stage._operations),
            "num_operations": count,
        }
        for variable, value in zip(model.variables, before, strict=True):
            variable.assign(value)
    return differences
