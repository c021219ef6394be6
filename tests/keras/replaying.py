"""A Keras model as a stage, beside the same model run by Keras."""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch

from hocket.keras import graph_of_keras
from hocket.keras.stage import KerasStage


def stage_of(model: keras.Model) -> KerasStage:
    """Return the whole model as a stage."""
    graph = graph_of_keras(model)
    (stage,) = graph.split([0, len(graph.layers)]).stages
    assert isinstance(stage, KerasStage)
    return stage


def twins(make: Callable[[], keras.Model]) -> tuple[KerasStage, keras.Model, keras.Model]:
    """Return a model as a stage, the model itself, and a second equal model."""
    models = []
    for _ in range(2):
        keras.utils.clear_session()
        keras.utils.set_random_seed(3)
        models.append(make())
    return stage_of(models[0]), models[0], models[1]


def around(make: Callable[[], keras.Layer], shape: tuple[int, ...]) -> Callable[[], keras.Model]:
    """Return a function that makes a model of one layer."""

    def make_model() -> keras.Model:
        inputs = keras.Input(shape)
        return keras.Model(inputs, make()(keras.layers.Activation("tanh")(inputs)))

    return make_model


def compare(stage: KerasStage, model: keras.Model, x: torch.Tensor, is_training: bool, key: int) -> None:
    """Run both on one batch, and assert that all results are equal bit for bit."""
    stage.train(is_training)
    results = []
    for one in ("stage", "keras"):
        given = x.clone().requires_grad_()
        stage.seed(key)
        seed_layers(model, key)
        (output,) = stage([given]) if one == "stage" else (model(given, training=is_training),)
        variables = stage.variables if one == "stage" else model.variables
        wanted = [each.value for each in variables if each.trainable]
        gradients = torch.autograd.grad(output.square().sum(), [given, *wanted], allow_unused=True)
        results.append([output, *gradients, torch.get_rng_state()])
    for mine, right in zip(*results, strict=True):
        assert (mine is None and right is None) or (torch.equal(mine, right) and mine.stride() == right.stride())
    for mine, theirs in zip(stage.variables, model.variables, strict=True):
        assert torch.equal(mine.value, theirs.value)


def seed_layers(model: keras.Model, key: int) -> None:
    for layer in model._flatten_layers():
        for generator in getattr(layer, "_seed_generators", ()):
            generator.state.value[1] = key


def inputs_of(shape: tuple[int, ...], seed: int, samples: int = 3) -> torch.Tensor:
    return torch.randn(samples, *shape, generator=torch.Generator().manual_seed(seed))
