"""Calls with every parameter of `model.fit` and `model.compile`, and with every callback."""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

from .fit_material import (
    Classes,
    Clipping,
    Curtailing,
    Looking,
    Noting,
    Orderly,
    Predicting,
    Several,
    Shuffled,
    Swing,
    apart,
    arrays,
    classes,
    classifier,
    dice,
    dropping,
    endless,
    f1,
    furthest,
    loader,
    moded,
    of_few_bits,
    of_names,
    of_one_output,
    penalized_alone,
    two_outputs,
)
from .like_keras import forked, masked, sgd, tokens

layers, ops = keras.layers, keras.ops


def given(x: Any, y: Any = None, **others: Any) -> dict[str, Any]:
    return {"x": x, "y": y, **others}


# By parameter of `model.fit`: calls with it.
PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "x": [
        {"arguments": lambda: given(Shuffled())},
        {"arguments": lambda: given(Orderly(workers=2)), "prepare": lambda model: model.evaluate(*arrays(), verbose=0)},
        {"arguments": lambda: given(endless(), steps_per_epoch=2)},
        {"arguments": lambda: given(loader())},
        {"arguments": lambda: given([arrays()[0]], arrays()[1][:, :1]), "make": lambda: of_one_output(1)},
        {"arguments": lambda: given(*arrays()), "make": lambda: of_one_output(2)},
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
    "batch_size": [
        {"arguments": lambda: given(*arrays(), batch_size=None, steps_per_epoch=2)},
        {
            "arguments": lambda: given(
                *arrays(), batch_size=None, validation_data=arrays(40), validation_steps=1, steps_per_epoch=2
            )
        },
        {"arguments": lambda: given(*arrays(), batch_size=3)},
    ],
    "epochs": [
        {"arguments": lambda: given(*arrays(), epochs=3)},
        {"arguments": lambda: given(*arrays(), epochs=3), "make": dropping},
    ],
    "verbose": [{"arguments": lambda: given(*arrays(), verbose=0)}],
    "callbacks": [{"arguments": lambda: given(*arrays(), callbacks=keras.callbacks.LambdaCallback())}],
    "validation_split": [
        {
            "arguments": lambda: given(*classes(), class_weight={0: 0.5, 1: 3.0}, validation_split=0.3),
            "make": classifier,
            "loss": lambda: "sparse_categorical_crossentropy",
        },
        {"arguments": lambda: given(*arrays(), validation_split=0.3)},
    ],
    "validation_data": [
        {"arguments": lambda: given(*arrays(), validation_data=arrays(6)), "make": moded},
        {
            "arguments": lambda: given(*arrays(), validation_data=arrays(6)),
            "make": moded,
            "prepare": lambda model: model.predict(arrays()[0], verbose=0),
        },
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
            "options": {"num_micro_batches": 1},  # with several, the values are smaller
            "arguments": lambda: given(*arrays(), epochs=6),
            "compiled": lambda: {
                # Too large at first: steps are skipped until it is small enough; then it grows.
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
        {"compiled": lambda: {"metrics": [f1, furthest, Swing(), Several()]}, "options": {"strategy": "data"}},
        {
            "make": of_names,
            "arguments": lambda: given(
                arrays()[0],
                {"a": arrays()[1], "b": arrays()[1]},
                sample_weight={"a": np.arange(10.0), "b": np.ones(10)},
            ),
            "compiled": lambda: {"loss": "mse", "metrics": {"a": ["mae", f1]}},
        },
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

# By class of `keras.callbacks`; None: the class cannot be tested here.
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
