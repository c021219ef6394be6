"""A torch module as torch.export traces it, as a graph of layers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from hocket.errors import InvalidModel
from hocket.train.layer_graph import LayerGraph
from hocket.train.traced import graph_of_fx


def graph_of_exported(
    model: nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any] | None = None
) -> LayerGraph:
    """Trace a module with `torch.export`, as it is in training and as it is in evaluation.

    What the module does may depend on shapes; the number of samples may be another one later on.

    Args:
        model: to trace; its layers are operations of ATen.
        arguments, keywords: an example of what it is called with, of 2 samples or more.

    Raises:
        InvalidModel: it cannot be exported: says what stands against it.
    """
    was_training = model.training
    try:
        training, evaluation = (
            _export(model.train(mode), tuple(arguments), dict(keywords or {})) for mode in (True, False)
        )
    finally:
        model.train(was_training)
    root = {**_attributes(training), **_attributes(evaluation), **_own(model)}
    codegen: Any = training.graph._codegen
    spec = codegen.pytree_info.out_spec
    return graph_of_fx(
        model,
        root,
        _plain(training.graph),
        _plain(evaluation.graph),
        lambda leaves: pytree.tree_unflatten(leaves, spec),
    )


def _export(model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> fx.GraphModule:
    samples = torch.export.Dim.AUTO

    def shape_of(leaf: Any) -> Any:
        return {0: samples} if isinstance(leaf, torch.Tensor) and leaf.dim() else None

    shapes: Any = pytree.tree_map(shape_of, arguments)
    if keywords:
        shapes = (*shapes, *(pytree.tree_map(shape_of, value) for value in keywords.values()))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(model, arguments, keywords, dynamic_shapes=shapes, strict=False)
            found: fx.GraphModule = program.module(check_guards=False)
    except Exception as error:  # whatever the code of the model raises
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InvalidModel(
            f"{type(model).__name__} cannot be exported, as what it does depends on the content of its inputs "
            f"({reason})"
        ) from error
    return found


def _plain(graph: fx.Graph) -> fx.Graph:
    """The graph without what checks its inputs."""
    for node in list(graph.nodes):
        if node.op == "call_module" and not node.users:
            graph.erase_node(node)
    return graph


def _attributes(module: fx.GraphModule) -> dict[str, Any]:
    """What the nodes of a graph name, such as constants that export has found."""
    names = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    return {name: _attribute(module, name) for name in names}


def _attribute(module: nn.Module, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _own(model: nn.Module) -> dict[str, Any]:
    """The model's own parameters and buffers, which stages are to train, not copies of them."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
