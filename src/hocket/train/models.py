"""Which way a model becomes a graph of layers."""

from __future__ import annotations

from torch import nn

from hocket.train.checks import check_model
from hocket.train.layer_graph import LayerGraph
from hocket.train.sequential import graph_of_sequential
from hocket.train.traced import graph_of_module


def graph_of(model: nn.Module) -> LayerGraph:
    """Return the layers of a model: the modules of a `torch.nn.Sequential`, the operations of any other, traced.

    Raises:
        InvalidType: it is no module.
        InvalidModel: it cannot be traced: says why.
    """
    check_model(model)
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        return graph_of_sequential(model)
    return graph_of_module(model)
