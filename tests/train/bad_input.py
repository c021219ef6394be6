"""Arguments that `fit` refuses; two ranks run the cases one after the other over one communicator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import hocket as hk
from hocket.train import EarlyStopping, fit

from ..naming import Given


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def _on_meta() -> nn.Module:
    with torch.device("meta"):
        return make_model()


def _in_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return make_model()


def _lbfgs(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters)


def _of_loss_too(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([*parameters, nn.Parameter(torch.ones(3))], lr=0.1)


def _constant_at_times(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return cross_entropy(output, target) if target[0] else output.new_zeros(())


class _WithExtraState(nn.Linear):
    def get_extra_state(self) -> str:
        return "no tensor"


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


X, Y = np.random.default_rng(7).normal(size=(64, 8)).astype(np.float32), np.arange(64) % 3
# Changes to the arguments of a training that works, made on every rank; the error; and names in its message.
CASES: dict[str, tuple[Callable[[], dict[str, Any]], str, str | tuple[str, ...]]] = {
    "no module": (lambda: {"model": 3}, "InvalidType", ("torch.nn.Module", "3")),
    "wrapped": (
        lambda: {"model": nn.DataParallel(make_model())},
        "InvalidModel",
        "model.module",
    ),
    "script": (lambda: {"model": torch.jit.trace(make_model(), torch.ones(2, 8))}, "InvalidModel", "TorchScript"),
    "lazy": (
        lambda: {"model": nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(3))},
        "InvalidModel",
        ("'0.weight'", "shape"),
    ),
    "meta": (lambda: {"model": _on_meta()}, "InvalidModel", ("'0.weight'", "meta")),
    "inference": (
        lambda: {"model": _in_inference_mode()},
        "InvalidModel",
        ("'0.weight'", "torch.inference_mode()"),
    ),
    "frozen": (lambda: {"model": make_model().requires_grad_(False)}, "InvalidModel", "Sequential"),
    "optimizer's name": (lambda: {"optimizer": "adam"}, "InvalidType", ("optimizer", "'adam'")),
    "optimizer of others": (
        lambda: {"optimizer": _sgd(make_model().parameters())},
        "InvalidArgument",
        ("SGD", "'0.weight'", "5"),
    ),
    "optimizer of some": (
        lambda: {"model": (made := make_model()), "optimizer": _sgd(made[0].parameters())},
        "InvalidArgument",
        ("SGD", "'2.weight'", "3"),
    ),
    "optimizer of more": (
        lambda: {"optimizer": _of_loss_too},
        "InvalidArgument",
        ("SGD", "1"),
    ),
    "closure": (lambda: {"optimizer": _lbfgs}, "InvalidArgument", ("LBFGS", "closure")),
    "loss's name": (lambda: {"loss": "mse"}, "InvalidType", ("loss", "'mse'")),
    "class of losses": (lambda: {"loss": nn.CrossEntropyLoss}, "InvalidType", ("loss", "CrossEntropyLoss")),
    "metric": (lambda: {"metrics": ["f1"]}, "InvalidArgument", ("'f1'", "accuracy")),
    "callback": (
        lambda: {"callbacks": [EarlyStopping]},
        "InvalidType",
        ("hocket.train.Callback", "EarlyStopping"),
    ),
    "metrics of one name": (
        lambda: {"metrics": [lambda *_: 0, lambda *_: 1]},
        "InvalidArgument",
        "'<lambda>'",
    ),
    "a metric's name": (lambda: {"metrics": "accuracy"}, "InvalidType", ("metrics", "'accuracy'")),
    "seed": (lambda: {"seed": 2**40}, "InvalidArgument", ("seed", "2**32", str(2**40))),
    "weighing": (lambda: {"weigh": 3}, "InvalidType", ("weigh", "3")),
    "norm": (lambda: {"max_gradient_norm": -1.0}, "InvalidArgument", ("max_gradient_norm", "0", "None", "-1.0")),
    "epochs": (lambda: {"epochs": 1.5}, "InvalidArgument", ("epochs", "0", "1.5")),
    "steps": (lambda: {"max_steps": -1}, "InvalidArgument", ("max_steps", "0", "-1")),
    "batch": (lambda: {"batch_size": 0}, "InvalidArgument", ("batch_size", "1", "0")),
    "lists": (lambda: {"data": (X.tolist(), Y.tolist())}, "InvalidType", ("data", "list", "8")),
    "objects": (lambda: {"data": (X.astype(object), Y)}, "InvalidType", ("data", "object")),
    "numbers": (lambda: {"data": (3, 4)}, "InvalidType", "data"),
    "lengths": (
        lambda: {"data": (X, Y[:60])},
        "InvalidArgument",
        "[60, 64]",
    ),
    "width": (
        lambda: {"data": (X[:, :7], Y)},
        "InvalidModel",
        ("stage 0", "float32 (4, 7)", "RuntimeError"),
    ),
    "doubles": (
        lambda: {"data": (X.astype(np.float64), Y)},
        "InvalidModel",
        ("stage 0", "addmm", "float32", "float64"),
    ),
    "whole numbers": (
        lambda: {"data": (np.arange(512).reshape(64, 8), Y)},
        "InvalidModel",
        ("stage 0", "int64 (4, 8)", "TypeError", "addmm", "float32"),
    ),
    "words": (
        lambda: {"model": nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(16, 3))},
        "InvalidModel",
        ("embedding", "int64", "int32", "float32"),
    ),
}
# Errors that only the rank of the last stage detects, in a step; the other rank gets Aborted.
LATE_CASES: dict[str, tuple[Callable[[], dict[str, Any]], str, str | tuple[str, ...]]] = {
    "vector": (
        lambda: {"loss": lambda output, target: cross_entropy(output, target, reduction="none")},
        "InvalidArgument",
        ("loss", "(4,)"),
    ),
    "float": (
        lambda: {"loss": lambda output, target: float(cross_entropy(output, target))},
        "InvalidType",
        ("loss", "float"),
    ),
    "decay": (
        lambda: {
            "model": (made := make_model()),
            "loss": lambda output, target: cross_entropy(output, target) + made[0].weight.square().sum(),
        },
        "InvalidModel",
        ("loss", "'0.weight'", "weight_decay"),
    ),
    "detached": (
        lambda: {"loss": lambda output, target: cross_entropy(output, target).detach()},
        "InvalidArgument",
        "loss",
    ),
    "targets": (lambda: {"data": (X, Y + 5)}, "IndexError", Given("out of bounds")),
}


def refusals(comm: hk.Communicator) -> dict[str, tuple[str, str]]:
    """Return the type and text of the error of every case; then check that trainings still work."""
    found = {}
    for name, (make, _, _) in {**CASES, **LATE_CASES}.items():
        try:
            _fit(comm, make())
        except Exception as error:
            found[name] = type(error).__name__, str(error)
    for given in {}, {"loss": _constant_at_times}, {"model": nn.Sequential(_WithExtraState(8, 8), nn.Linear(8, 3))}:
        assert _fit(comm, given).history["loss"][-1] > 0
    return found


def _fit(comm: hk.Communicator, given: dict[str, Any]) -> Any:
    usual = {"model": make_model(), "data": (X, Y), "loss": cross_entropy, "optimizer": _sgd, "show_progress": False}
    arguments = {**usual, **given}
    return fit(arguments.pop("model"), arguments.pop("data"), comm=comm, **arguments)
