"""Checks that a compiled model can be trained without its own training step."""

from __future__ import annotations

import keras

from hocket.errors import InvalidArgument, InvalidModel
from hocket.keras.parts import is_of_keras


def check_compiled(model: keras.Model) -> None:
    """Check that a model can be trained without its own training step.

    Raises:
        InvalidModel: it cannot; the message says why.
    """
    if not model.compiled:
        raise InvalidModel(f"model {model.name!r} is not compiled: call model.compile(optimizer, loss) first")
    if model._compile_loss is None and not _adds_losses(model):
        raise InvalidModel(f"model {model.name!r} is compiled without a loss: call model.compile(optimizer, loss)")
    _check_metrics_of_layers(model)
    if model.steps_per_execution != 1:
        raise InvalidModel(f"steps_per_execution must be 1 on the torch backend, not {model.steps_per_execution}")
    if model.jit_compile:
        raise InvalidModel("jit_compile must be False, not True: parts of a model are not compiled")
    for name in ("train_step", "test_step", "compute_loss", "compute_metrics"):
        plain = getattr(keras.Sequential if isinstance(model, keras.Sequential) else keras.Model, name)
        if getattr(type(model), name) is not plain:
            raise InvalidModel(
                f"model {model.name!r} defines its own {name}, which a pipeline does not call: use that of keras.Model"
            )


def check_what_is_written(model: keras.Model, num_micro_batches: int) -> None:
    """Check that no forward pass writes to a variable that the backward pass of another micro-batch needs.

    Raises:
        InvalidModel: a layer does; the message says what would be right.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.SpectralNormalization) and num_micro_batches > 1:
            raise InvalidModel(
                f"layer {layer.name!r} writes to its kernel in every forward pass, and there are {num_micro_batches} "
                "before the optimizer's step: set num_micro_batches=1"
            )


def _check_metrics_of_layers(model: keras.Model) -> None:
    for layer in model._flatten_layers(include_self=False):
        if layer._metrics:
            raise InvalidModel(
                f"layer {layer.name!r} has its own metric, {layer._metrics[0].name!r}, which ranks would count "
                "separately: make its values an output of the model, and pass the metric to model.compile"
            )


def _adds_losses(model: keras.Model) -> bool:
    """Return whether layers of a model may add to its loss."""
    plain = keras.Layer.call
    return bool(model.losses) or any(
        getattr(layer, "activity_regularizer", None) is not None or not is_of_keras(layer)
        for layer in model._flatten_layers()
        if type(layer).call is not plain
    )


def compile_by_name(model: keras.Model, loss: str, optimizer: str, learning_rate: float) -> None:
    """Compile a model that is not compiled yet.

    Raises:
        InvalidArgument: the loss or the optimizer is unknown.
    """
    if model.compiled:
        return
    losses = {"cross_entropy": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "mse": "mse", "l1": "mae"}
    optimizers = {
        "sgd": lambda: keras.optimizers.SGD(learning_rate, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(learning_rate),
        "adamw": lambda: keras.optimizers.AdamW(learning_rate),
    }
    for what, name, known in (("loss", loss, losses), ("optimizer", optimizer, optimizers)):
        if name not in known:
            raise InvalidArgument(f"{what} of a Keras model must be {', '.join(known)}; not {name!r}")
    model.compile(optimizers[optimizer](), losses[loss], metrics=["accuracy"] if loss == "cross_entropy" else [])
