"""Trainings with all arguments of `model.fit`, by Keras and by hocket on the same ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

from hocket.comm import Communicator
from hocket.keras import fit

from .fit_cases import CALLBACKS, COMPILED, PARAMETERS, given
from .fit_material import (
    Dependent,
    arrays,
    dice,
    loader,
    measured,
    penalized_by_sums,
    with_an_optional_input,
)
from .like_keras import chain, data, forked, masked, refusal, sgd, tokens

ops = keras.ops


def all_cases() -> dict[str, dict[str, Any]]:
    return {
        f"{kind}: {name} {number}": case
        for kind, table in (("fit", PARAMETERS), ("compile", COMPILED), ("callbacks", CALLBACKS))
        for name, cases in table.items()
        for number, case in enumerate(cases)
    }


def both(comm: Communicator, case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train by Keras and by hocket; return both results, and the difference of the weights."""
    found: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    for who in ("keras", "hocket"):
        keras.utils.set_random_seed(0)
        keras.utils.clear_session()
        model = case.get("make", chain)()
        loss = {} if case.get("loss", bool)() is None else {"loss": case.get("loss", lambda: "mse")()}
        model.compile(**{"optimizer": sgd(), **loss, **case.get("compiled", dict)()})
        case.get("prepare", bool)(model)  # otherwise Keras, with threads, loses the batch with which it builds a model
        initial = model.get_weights()
        arguments = case.get("arguments", lambda: given(*arrays()))()
        place = folder / f"{who} {comm.rank}"
        place.mkdir(parents=True)
        callback = case["callback"](place) if "callback" in case else None
        arguments = {"epochs": 2, **arguments}
        if isinstance(arguments["x"], (np.ndarray, list)):
            arguments = {"batch_size": 4, "shuffle": False, **arguments}
        else:
            arguments["shuffle"] = False
        if callback is not None:
            arguments["callbacks"] = [callback]
        if who == "keras":
            history = model.fit(**{"verbose": 0, **arguments})
            if "disturbs" in case:  # Keras resets its metrics if a callback evaluates; hocket continues
                history = _without_callbacks(model, initial, arguments)
        else:
            options = {"num_micro_batches": 2, "timeout": 60, "verbose": False, **case.get("options", {})}
            history = fit(model, **{**options, **arguments}, comm=comm)
        found[who] = {
            "history": {name: np.array(each).tolist() for name, each in history.history.items()},
            "epoch": list(history.epoch),
            "scales": [
                float(each.value)
                for each in getattr(model.optimizer, "_variables", [])
                if each.path.endswith("dynamic_scale")
            ],
            "counters": [
                int(each.state.value[1]) for layer in model._flatten_layers() for each in layer._seed_generators
            ],
            "told": getattr(callback, case["told"], []) if "told" in case else [],
            "data": getattr(arguments["x"], "told", []),
            "written": (place / case["written"]).read_text() if _is_there(place, case, "written") else "",
            "evaluated": [float(each) for each in np.atleast_1d(_evaluated(model, arguments))],
        }
        weights[who] = model.get_weights()
        if _is_there(place, case, "saved"):
            model.load_weights(place / case["saved"])
            weights[who] += model.get_weights()
    found["distances"] = [
        float(np.abs(a - b).max()) for a, b in zip(weights["keras"], weights["hocket"], strict=comm.rank == 0)
    ]
    found["has_nan"] = [bool(np.isnan(each).any()) for each in weights["hocket"]]
    return found


def _without_callbacks(model: keras.Model, initial: Any, arguments: dict[str, Any]) -> Any:
    """Return the history of the same training without callbacks, which ends with the same weights."""
    model.set_weights(initial)
    for each in model.optimizer.variables:
        if each is not model.optimizer._learning_rate:
            each.assign(ops.zeros_like(each))
    return model.fit(**{"verbose": 0, **arguments, "callbacks": []})


def _evaluated(model: keras.Model, arguments: dict[str, Any]) -> Any:
    """Return Keras' evaluation of the trained model: every rank has the whole model."""
    if not isinstance(arguments["x"], np.ndarray):
        return model.predict(arrays()[0], verbose=0).sum()
    sample_weight = arguments.get("sample_weight")
    return model.evaluate(arguments["x"], arguments["y"], sample_weight=sample_weight, verbose=0)


def _is_there(folder: Path, case: dict[str, Any], kind: str) -> bool:
    return kind in case and (folder / case[kind]).exists()


def refused(comm: Communicator) -> dict[str, str]:
    """Return the class and text of the error of every refused case."""
    x, y = arrays()

    def trained(make: Callable[[], Any] = chain, compiled: Any = None, **options: Any) -> str:
        keras.utils.set_random_seed(0)
        model = make()
        model.compile(**{"optimizer": sgd(), "loss": "mse", **(compiled or {})})
        before = model.get_weights()
        common = {"x": x, "y": y, "comm": comm, "num_micro_batches": 2, "timeout": 30, "verbose": 0}
        said = refusal(lambda: fit(model, **{**common, **options}))
        changed = any(not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
        return f"{said} (weights changed: {changed})"

    nothing = data()[0]
    return {
        "own loss": trained(compiled={"loss": dice}),
        "own class of loss": trained(compiled={"loss": Dependent()}),
        "loss along samples": trained(compiled={"loss": keras.losses.CosineSimilarity(axis=0)}),
        "added sums": trained(penalized_by_sums),
        "metrics of layers": trained(measured),
        "sample_weight without y": trained(y=None, sample_weight=np.ones(10)),
        "own loss of two replicas": trained(compiled={"loss": dice}, strategy="data", num_micro_batches=1),
        "wrong weigh": trained(
            masked,
            {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
            x=tokens()[0],
            y=tokens()[1],
            weigh=lambda y, _: 1.0,
            shuffle=False,
        ),
        "optional input": trained(with_an_optional_input, x=[x, None]),
        "no y": trained(x=nothing, y=None),
        "an output without target": trained(forked, y={"a": y}),
        "one target of two": trained(forked, y=[y]),
        "steps_per_execution": trained(compiled={"steps_per_execution": 2}),
        "jit_compile": trained(compiled={"jit_compile": True}),
        "class_weight and sample_weight": trained(sample_weight=np.ones(10), class_weight={0: 1.0}),
        "class_weight of a loader": trained(x=loader(), y=None, class_weight={0: 1.0}),
        "sample_weight of a loader": trained(x=loader(), y=None, sample_weight=np.ones(10)),
        "sample_weight twice": trained(x=(x, y, np.ones(10)), y=None, sample_weight=np.ones(10)),
        "validation_split of a loader": trained(x=loader(), y=None, validation_split=0.5),
        "validation_split": trained(validation_split=1.5),
        "validation_freq": trained(validation_freq="often"),
        "steps_per_epoch": trained(steps_per_epoch=0),
        "four things": trained(x=(x, y, y, y), y=None),
        "an empty generator": trained(x=iter(()), y=None),
        "nothing": trained(x=None, y=None),
    }


def absent(comm: Communicator, folder: Path) -> dict[str, str]:
    """Return the errors of callbacks whose packages are not installed, when they are made or in a training."""
    found = {}
    makers = {
        "TensorBoard": lambda: keras.callbacks.TensorBoard(folder / "board"),
        "OrbaxCheckpoint": lambda: keras.callbacks.OrbaxCheckpoint(str(folder / "orbax")),
        "RemoteMonitor": lambda: keras.callbacks.RemoteMonitor("http://127.0.0.1:9"),
    }
    for name, make in makers.items():
        model = chain()
        model.compile("sgd", "mse")
        try:
            with mock.patch("keras.src.callbacks.remote_monitor.requests", None):  # the tools of the pages need it
                fit(model, *arrays(), callbacks=[make()], comm=comm, num_micro_batches=2, timeout=30, verbose=0)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = "none"
    return found


def fit_like_keras(comm: Communicator, folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    keras.config.set_dtype_policy("float32")
    keras.backend.set_floatx("float32")
    found: dict[str, Any] = {}
    for number, (name, case) in enumerate(all_cases().items()):
        found[name] = both(comm, case, folder / str(number))
        comm.barrier()
    found["refused"] = refused(comm)
    found["absent"] = absent(comm, folder)
    return found
