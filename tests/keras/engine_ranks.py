"""What the ranks of the tests of gradient engines with Keras models do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

from hocket.comm import Communicator
from hocket.errors import HocketError
from hocket.keras import fit
from hocket.train import EngineChoice, gradient_engines
from hocket.train.engines.registry import DEFAULT

layers = keras.layers
SUMMING = sorted(name for name in gradient_engines() if not EngineChoice(name).updates)
UPDATING = sorted(name for name in gradient_engines() if EngineChoice(name).updates)
EPOCHS = 2


def network() -> keras.Model:
    """Return a model with a shared layer and a constraint."""
    keras.utils.set_random_seed(5)
    shared = layers.Dense(6, activation="tanh", kernel_constraint=keras.constraints.MaxNorm(0.8))
    inputs = keras.Input((6,))
    return keras.Model(inputs, layers.Dense(3)(shared(shared(inputs))))


def compiled(optimizer: Any) -> keras.Model:
    model = network()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def samples() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(6)
    x = generator.normal(size=(48, 6)).astype("float32")
    return x, x[:, :3].argmax(1)


def alone(optimizer: Any, **options: Any) -> dict[str, Any]:
    """Train by Keras itself; return what `trained` returns."""
    model = compiled(optimizer)
    history = model.fit(*samples(), batch_size=16, epochs=EPOCHS, shuffle=False, verbose=0, **options)
    return results(model, history)


def trained(comm: Communicator, engine: str, optimizer: Any, **options: Any) -> dict[str, Any]:
    """Train with an engine; return the losses of epochs, the weights and the optimizer's variables."""
    model = compiled(optimizer)
    arguments = {"batch_size": 16, "epochs": EPOCHS, "shuffle": False, "strategy": "data", "timeout": 60.0} | options
    return results(model, fit(model, *samples(), engine=engine, comm=comm, verbose=0, **arguments))


def results(model: keras.Model, history: Any) -> dict[str, Any]:
    return {
        "loss": history.history["loss"],
        "rates": history.history.get("learning_rate"),
        "weights": model.get_weights(),
        "optimizer": [each.value.detach().numpy() for each in model.optimizer.variables],
    }


LOSSLESS = ("ok-topk(density=1.0, dense=never)", "zfp(tolerance=0)")
LOSSY = ("cast(bfloat16)", "qsgd", "power-sgd(rank=2, min_rate=0.5)", "one-bit(group=16)", "dgc(density=0.5)")


def compressed(comm: Communicator) -> dict[str, dict[str, Any]]:
    """Return what `trained` returns, by the compressor of gradients."""
    return {
        each: trained(comm, DEFAULT, keras.optimizers.SGD(0.1, momentum=0.9), gradients=each)
        for each in LOSSLESS + LOSSY
    }


def summed(comm: Communicator) -> dict[tuple[str, bool], dict[str, Any]]:
    """Return the results of one process, and of each engine that sums, in the order of ranks and in any."""

    def train_by(on: Communicator, name: str, exact: bool) -> dict[str, Any]:
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        return trained(on, name, optimizer, exact=exact, num_micro_batches=comm.size // on.size)

    found = {("one process", True): train_by(comm.group([comm.rank]), "mix", True)}
    for name in SUMMING:
        for exact in (False, True):
            if not exact or gradient_engines()[name].has_order:
                found[name, exact] = train_by(comm, name, exact)
    return found


def updated(comm: Communicator) -> dict[str, Any]:
    """Return the results of engines that update; without backups, these are those of one process."""
    found = {}
    for name in UPDATING:
        options = {"num_backups": 0} if "backup" in name else {"num_servers": 2, "message_nbytes": 100}
        optimizer = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.9))
        found[name] = trained(comm, name, optimizer, engine_options=options)
    return found


class Halving(keras.callbacks.Callback):
    """Writes to all weights before the first step."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.set_weights([each / 2 for each in self.model.get_weights()])


class Looking(keras.callbacks.Callback):
    """Reads an optimizer's variable within an epoch, and changes the learning rate."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        slot = self.model.optimizer.variables[2]
        self.seen.append(float(keras.ops.sum(keras.ops.abs(slot))))
        if batch == 1:
            self.model.optimizer.learning_rate = 0.5 * float(self.model.optimizer.learning_rate)


def called_back(comm: Communicator | None, folder: Path) -> dict[str, Any]:
    """Train with callbacks that read, save and restore; by Keras itself without a communicator."""
    looking = Looking()
    callbacks = [
        looking,
        Halving(),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.04 if epoch == 0 else rate / 2),
        keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras"),
        keras.callbacks.EarlyStopping("loss", patience=5, start_from_epoch=0, restore_best_weights=True, mode="max"),
    ]
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, use_ema=False)
    if comm is None:
        found = alone(optimizer, callbacks=callbacks)
    else:
        found = trained(comm, "parameter-server-async", optimizer, callbacks=callbacks)
    loaded = keras.models.load_model(folder / "1.keras")
    return found | {
        "seen": looking.seen,
        "saved": [*loaded.get_weights(), *(each.value.detach().numpy() for each in loaded.optimizer.variables)],
    }


class Writing(keras.callbacks.Callback):
    """Writes to a variable after a batch."""

    def __init__(self, of_optimizer: bool) -> None:
        super().__init__()
        self._of_optimizer = of_optimizer

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        owner = self.model.optimizer if self._of_optimizer else self.model
        owner.variables[0].assign(owner.variables[0] + 1)


def written(comm: Communicator) -> list[tuple[str, str]]:
    """Return the errors of callbacks that write to variables that servers have."""
    found = []
    for of_optimizer in (False, True):
        try:
            trained(comm, "parameter-server-async", keras.optimizers.SGD(0.1), callbacks=[Writing(of_optimizer)])
        except HocketError as error:
            found.append((type(error).__name__, str(error)))
    return found
