"""Which way a model becomes a graph of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from hocket.errors import InvalidModel
from hocket.train.model.checks import check_model
from hocket.train.model.exported import export_layers
from hocket.train.model.layer_graph import LayerGraph
from hocket.train.model.sequential import graph_of_sequential
from hocket.train.model.traced import graph_of_module


def graph_of(model: nn.Module) -> LayerGraph:
    """Return the layers of a model: the modules of a `torch.nn.Sequential`, the operations of any other, traced.

    Raises:
        InvalidType: it is no module.
        InvalidModel: it cannot be traced: says why.
    """
    check_model(model)
    return _graph_of_checked(model)


def graph_of_exported(
    model: nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any] | None = None
) -> LayerGraph:
    """Trace a module with `torch.export`, as it is in training and as it is in evaluation.

    What the module does may depend on shapes. The number of samples may be another one later on, and whatever else the
    code did not look at; inputs for which it would do something else are refused when they come.

    Args:
        model: to trace; its layers are operations of ATen.
        arguments, keywords: an example of what it is called with, of 2 samples or more.

    Raises:
        InvalidType: it is no module.
        InvalidModel: it cannot be exported: says what stands against it.
    """
    check_model(model)
    return export_layers(model, arguments, keywords)


def graph_of_example(model: nn.Module, example: Callable[[], Any]) -> LayerGraph:
    """Return the layers of a checked model, by torch.export where its code is too much for tracing.

    Args:
        model: see `check_model`.
        example: returns what the model takes, or None where nothing is at hand for torch.export.

    Raises:
        InvalidModel: it cannot be traced: says why.
    """
    try:
        return _graph_of_checked(model)
    except InvalidModel:
        x = example()
        if x is None:
            raise
    if isinstance(x, Mapping):
        return export_layers(model, (), x)
    return export_layers(model, tuple(x) if isinstance(x, (tuple, list)) else (x,))


def _graph_of_checked(model: nn.Module) -> LayerGraph:
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        return graph_of_sequential(model)
    return graph_of_module(model)
