"""A chain of modules as a graph of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from hocket.train.model.layer_graph import Layer, LayerGraph
from hocket.train.model.modes import Modes
from hocket.train.model.module_stage import ModuleStage
from hocket.train.model.stage import Stage
from hocket.train.model.tracing import check_hooks


class _Chain(nn.Module):
    """Some modules of a chain, with their names in the chain."""

    def __init__(self, model: nn.Sequential, here: range) -> None:
        super().__init__()
        for name, module in list(model._modules.items())[here.start : here.stop]:
            self.add_module(name, module)

    def forward(self, value: Any) -> tuple[Any]:
        for module in self._modules.values():  # children() has a repeated module only once
            assert module is not None
            value = module(value)
        return (value,)


def graph_of_sequential(model: nn.Sequential) -> LayerGraph:
    """Return the layers of a chain; the values between them may be tensors or trees of tensors."""
    check_hooks(model, lambda _: True)
    layers, value = [], "input"
    frozen = Modes(model).frozen
    for name, module in model._modules.items():
        parameters = {f"{name}.{each}": parameter for each, parameter in module.named_parameters()}
        layers.append(Layer(f"output of {name}", (value,), parameters))
        value = layers[-1].name

    def make_stage(here: range, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Stage:
        return ModuleStage(_Chain(model, here), inputs, outputs, frozen=frozen)

    return LayerGraph(tuple(layers), ("input",), (value,), make_stage, _only, model, "modules")


def _only(values: Sequence[Any]) -> Any:
    return values[0]
