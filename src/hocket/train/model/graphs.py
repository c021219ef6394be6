"""Make a graph of layers from a model, by the kind of the model."""

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
    """Return the layers of a model: the modules of a `torch.nn.Sequential`, or the traced operations of another module.

    Raises:
        InvalidType: `model` is not a module.
        InvalidModel: it cannot be traced; the message says why.

    Examples:
        >>> import torch
        >>> class Residual(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.inner = torch.nn.Linear(4, 4)
        ...     def forward(self, x):
        ...         return x + torch.relu(self.inner(x))
        >>> [layer.name for layer in hk.train.graph_of(Residual()).layers]
        ['inner', 'relu', 'add']
    """
    check_model(model)
    return _graph_of_checked(model)


def graph_of_exported(
    model: nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any] | None = None
) -> LayerGraph:
    """Trace a module with `torch.export`, in training mode and in evaluation mode.

    The code of the module may depend on shapes. Later inputs may differ in the number of samples, and in all sizes that
    the code does not read. An input for which the code would take another path raises InvalidModel when it is used.

    Args:
        model: the module to trace; its layers are operations of ATen.
        arguments, keywords: example arguments of the module, with 2 samples or more.

    Raises:
        InvalidType: `model` is not a module.
        InvalidModel: it cannot be exported; the message says why.

    Examples:
        >>> import torch
        >>> class Padded(torch.nn.Module):
        ...     def forward(self, x):
        ...         return torch.nn.functional.pad(x, (0, 4 - x.shape[1])) if x.shape[1] < 4 else x
        >>> graph = hk.train.graph_of_exported(Padded(), (torch.ones(2, 3),))
        >>> [layer.name for layer in graph.layers]
        ['pad']
    """
    check_model(model)
    return export_layers(model, arguments, keywords)


def graph_of_example(model: nn.Module, example: Callable[[], Any]) -> LayerGraph:
    """Return the layers of a checked model; if tracing fails, use torch.export.

    Args:
        model: see `check_model`.
        example: returns example inputs of the model for torch.export, or None if no example is available.

    Raises:
        InvalidModel: the model cannot be traced; the message says why.
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
