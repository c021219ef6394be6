"""What Keras has for `model.fit`, `model.compile` and callbacks, as calls of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

from .like_keras import chain, forked, masked, sgd, tokens

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
    """Batches in one order, which several threads may read ahead of."""

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
    """Adds to the loss, which nothing else does."""

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
    """Draws random numbers, which change nothing."""
    noise = [layers.Dropout(1e-9), layers.GaussianNoise(1e-9)]
    return keras.Sequential([keras.Input((4,)), noise[0], layers.Dense(4), noise[1], layers.Dense(2)])


def two_outputs() -> keras.Model:
    inputs = keras.Input((4,))
    return keras.Model(inputs, [layers.Dense(2)(inputs), layers.Dense(2)(layers.Dense(3)(inputs))])


def penalized_alone() -> keras.Model:
    given = keras.Input((4,))
    return keras.Model(given, Penalty()(layers.Dense(3)(layers.Dense(4)(given))))


def f1(y: Any, output: Any) -> Any:
    """One number for a batch, which no mean over its parts is."""
    output = ops.cast(output > 0.5, "float32")
    hits = ops.sum(y * output)
    return 2 * hits / (ops.sum(y) + ops.sum(output) + 1e-7)


def apart(y: Any, output: Any) -> Any:
    """Of each sample, a number that depends on all."""
    return ops.mean(ops.abs(y - output), axis=-1) * ops.max(output)


def furthest(y: Any, output: Any) -> Any:
    return ops.max(ops.abs(ops.cast(y, output.dtype) - output))


class Swing(keras.metrics.Metric):
    """How far each batch is from the one before it: the order counts."""

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
    """One number for a batch, as a loss."""
    hits = ops.sum(y * output)
    return 1 - (2 * hits + 1) / (ops.sum(y) + ops.sum(output) + 1)


class Noting(keras.callbacks.Callback):
    """Notes everything that it is told."""

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
    """Predicts, evaluates, reads and saves, also within an epoch, and parts of the model and another one."""

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


def given(x: Any, y: Any = None, **others: Any) -> dict[str, Any]:
    return {"x": x, "y": y, **others}


# By parameter of `model.fit`: calls that give it.
PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "x": [
        {"arguments": lambda: given(Shuffled())},
        {"arguments": lambda: given(Orderly(workers=2)), "prepare": lambda model: model.evaluate(*arrays(), verbose=0)},
        {"arguments": lambda: given(endless(), steps_per_epoch=2)},
        {"arguments": lambda: given(loader())},
        {"arguments": lambda: given(arrays()[0]), "make": penalized_alone, "loss": lambda: None},
    ],
    "y": [
        {"arguments": lambda: given(arrays()[0], {"a": arrays()[1], "b": arrays()[1]}), "make": forked},
        {
            "arguments": lambda: given(arrays()[0], [arrays()[1], arrays()[1]]),
            "make": two_outputs,
            "loss": lambda: ["mse", "mse"],
        },
    ],
    "batch_size": [{"arguments": lambda: given(*arrays(), batch_size=3)}],
    "epochs": [
        {"arguments": lambda: given(*arrays(), epochs=3)},
        {"arguments": lambda: given(*arrays(), epochs=3), "make": dropping},
    ],
    "verbose": [{"arguments": lambda: given(*arrays(), verbose=0)}],
    "callbacks": [{"arguments": lambda: given(*arrays(), callbacks=keras.callbacks.LambdaCallback())}],
    "validation_split": [{"arguments": lambda: given(*arrays(), validation_split=0.3)}],
    "validation_data": [
        {"arguments": lambda: given(*arrays(), validation_data=(*arrays(6), np.arange(6.0)))},
        {"arguments": lambda: given(*arrays(), validation_data=Shuffled())},
        {"arguments": lambda: given(*arrays(), validation_data=loader())},
    ],
    "shuffle": [{"arguments": lambda: given(*arrays(8), batch_size=8, shuffle=True)}],
    "class_weight": [
        {
            "arguments": lambda: given(*classes(), class_weight={0: 0.5, 1: 3.0}),
            "make": classifier,
            "loss": lambda: "sparse_categorical_crossentropy",
        },
        {
            "arguments": lambda: given(Classes(), class_weight={0: 0.5, 1: 3.0}),
            "make": classifier,
            "loss": lambda: "sparse_categorical_crossentropy",
        },
    ],
    "sample_weight": [{"arguments": lambda: given(*arrays(), sample_weight=np.arange(10.0))}],
    "initial_epoch": [{"arguments": lambda: given(*arrays(), epochs=3, initial_epoch=1)}],
    "steps_per_epoch": [
        {"arguments": lambda: given(endless(), steps_per_epoch=4, epochs=3)},
        {"arguments": lambda: given(*arrays(), steps_per_epoch=2, epochs=4)},
        {"arguments": lambda: given(*arrays(), steps_per_epoch=5, epochs=2)},
        {"arguments": lambda: given(Shuffled(), steps_per_epoch=2, epochs=3)},
    ],
    "validation_steps": [
        {"arguments": lambda: given(*arrays(), validation_data=arrays(6), validation_steps=1)},
        {"arguments": lambda: given(*arrays(), validation_data=endless(), validation_steps=2)},
    ],
    "validation_batch_size": [
        {"arguments": lambda: given(*arrays(), validation_data=arrays(6), validation_batch_size=5)}
    ],
    "validation_freq": [
        {"arguments": lambda: given(*arrays(), epochs=4, validation_data=arrays(6), validation_freq=2)},
        {"arguments": lambda: given(*arrays(), epochs=4, validation_data=arrays(6), validation_freq=[1, 4])},
    ],
}

# By parameter of `model.compile`.
COMPILED: dict[str, list[dict[str, Any]]] = {
    "optimizer": [
        {"compiled": lambda: {"optimizer": keras.optimizers.AdamW(0.01)}},
        {"make": lambda: of_few_bits("mixed_float16"), "tolerance": 5e-3},
        {
            "make": lambda: of_few_bits("mixed_float16"),
            "tolerance": 5e-3,
            "options": {"num_micro_batches": 1},  # sums of more than one are not as large
            "arguments": lambda: given(*arrays(), epochs=6),
            "compiled": lambda: {
                # Too large at first: steps are left out until it is not, and then it grows.
                "optimizer": keras.optimizers.LossScaleOptimizer(
                    sgd(global_clipnorm=0.5), initial_scale=2.0**20, dynamic_growth_steps=3
                )
            },
        },
        {"make": lambda: of_few_bits("mixed_bfloat16"), "tolerance": 5e-2},
    ],
    "loss": [
        {"compiled": lambda: {"loss": lambda y, output: ops.mean(ops.abs(y - output), axis=-1)}},
        {"compiled": lambda: {"loss": dice}, "options": {"num_micro_batches": 1}},
    ],
    "loss_weights": [
        {
            "make": forked,
            "arguments": lambda: given(arrays()[0], {"a": arrays()[1], "b": arrays()[1]}),
            "compiled": lambda: {"loss": {"a": "mse", "b": "mae"}, "loss_weights": {"a": 0.25, "b": 2.0}},
        }
    ],
    "metrics": [
        {"compiled": lambda: {"metrics": [f1, furthest, Swing(), keras.metrics.AUC(), keras.losses.Dice()]}},
        {"compiled": lambda: {"metrics": [f1, furthest, Swing()]}, "options": {"strategy": "data"}},
        {"compiled": lambda: {"metrics": ["mae", keras.metrics.AUC()]}, "options": {"strategy": "data"}},
        {
            "make": masked,
            "arguments": lambda: given(*tokens()),
            "options": {"num_micro_batches": 1},
            "compiled": lambda: {
                "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                "metrics": ["accuracy"],
            },
        },
        {
            "make": masked,
            "arguments": lambda: given(*tokens()),
            "options": {"weigh": lambda y, _: float((y > 0).sum())},
            "compiled": lambda: {
                "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                "metrics": ["accuracy", Swing()],
            },
        },
    ],
    "weighted_metrics": [
        {
            "compiled": lambda: {"weighted_metrics": ["mae", apart]},
            "arguments": lambda: given(*arrays(), sample_weight=np.arange(10.0)),
        }
    ],
    "run_eagerly": [{"compiled": lambda: {"run_eagerly": True}}],
    "steps_per_execution": [{"compiled": lambda: {"steps_per_execution": 1}}],
    "jit_compile": [{"compiled": lambda: {"jit_compile": False}}],
    "auto_scale_loss": [
        {
            "make": lambda: of_few_bits("mixed_float16"),
            "tolerance": 5e-3,
            "compiled": lambda: {"auto_scale_loss": False},
        }
    ],
}

# By class of `keras.callbacks`; None: it has a reason of its own not to be here.
CALLBACKS: dict[str, list[dict[str, Any]]] = {
    "BackupAndRestore": [
        {"callback": lambda folder: keras.callbacks.BackupAndRestore(folder / "backup")},
        {"callback": lambda folder: keras.callbacks.BackupAndRestore(folder / "backup", save_freq=2)},
    ],
    "CSVLogger": [
        {"callback": lambda folder: keras.callbacks.CSVLogger(str(folder / "log.csv")), "written": "log.csv"}
    ],
    "Callback": [
        {
            "callback": lambda folder: Noting(),
            "told": "calls",
            "arguments": lambda: given(*arrays(), validation_data=arrays(6)),
            "compiled": lambda: {"metrics": ["mae", f1]},
        },
        {
            "callback": lambda folder: Noting(),
            "told": "calls",
            "arguments": lambda: given(*arrays(), validation_data=arrays(6)),
            "compiled": lambda: {"metrics": ["mae"]},
            "options": {"strategy": "data"},
        },
        {"callback": Looking, "told": "seen", "disturbs": True, "compiled": lambda: {"metrics": ["mae"]}},
        {
            "callback": Looking,
            "told": "seen",
            "disturbs": True,
            "compiled": lambda: {"metrics": ["mae"]},
            "options": {"strategy": "data"},
        },
        {"callback": lambda folder: Predicting(), "told": "seen"},
        {"callback": lambda folder: Clipping()},
        {
            "callback": lambda folder: Curtailing(),
            "arguments": lambda: given(*arrays(), validation_data=arrays(9), validation_batch_size=3),
        },
    ],
    "EarlyStopping": [
        {"callback": lambda folder: keras.callbacks.EarlyStopping("loss", min_delta=9.0, restore_best_weights=True)}
    ],
    "LambdaCallback": [
        {"callback": lambda folder: keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)}
    ],
    "LearningRateScheduler": [
        {"callback": lambda folder: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)}
    ],
    "ModelCheckpoint": [
        {
            "callback": lambda folder: keras.callbacks.ModelCheckpoint(str(folder / "kept.keras"), save_freq=2),
            "saved": "kept.keras",
        },
        {
            "callback": lambda folder: keras.callbacks.ModelCheckpoint(
                str(folder / "kept.keras"), save_freq=2, monitor="loss", save_best_only=True
            ),
            "saved": "kept.keras",
        },
        {
            "callback": lambda folder: keras.callbacks.ModelCheckpoint(
                str(folder / "kept.weights.h5"), save_weights_only=True
            ),
            "saved": "kept.weights.h5",
        },
    ],
    "ProgbarLogger": [{"callback": lambda folder: keras.callbacks.ProgbarLogger()}],
    "ReduceLROnPlateau": [
        {"callback": lambda folder: keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=9.0)}
    ],
    "SwapEMAWeights": [
        {
            "callback": lambda folder: keras.callbacks.SwapEMAWeights(),
            "compiled": lambda: {"optimizer": sgd(use_ema=True, ema_momentum=0.5)},
        }
    ],
    "TerminateOnNaN": [
        {"callback": lambda folder: keras.callbacks.TerminateOnNaN()},
        {
            "callback": lambda folder: keras.callbacks.TerminateOnNaN(),
            "arguments": lambda: given(arrays()[0] * np.float32(np.nan), arrays()[1]),
        },
    ],
}

ELSEWHERE = {
    "CallbackList": "what holds them",
    "History": "what fit returns",
    "OrbaxCheckpoint": "Keras has it where orbax is installed",
    "RemoteMonitor": "Keras has it where requests is installed, and sends to a server",
    "TensorBoard": "Keras has it where tensorflow is installed",
}
