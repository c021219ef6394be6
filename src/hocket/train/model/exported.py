"""A graph of layers of the operations that torch.export traces."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from hocket.errors import InvalidModel, first_line
from hocket.train.model.layer_graph import LayerGraph
from hocket.train.model.modes import Modes
from hocket.train.model.specs import ValueSpec, blank
from hocket.train.model.traced import graph_of_fx
from hocket.train.model.tracing import check_hooks, random_state, refusing_what_export_leaves_out


def export_layers(model: nn.Module, arguments: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> LayerGraph:
    """Return the layers of a checked module, traced with an example: see `hocket.train.graph_of_exported`."""
    check_hooks(model, lambda _: False)
    # Copies: for a view, torch.export would record facts of the whole tensor.
    example = pytree.tree_map_only(torch.Tensor, torch.clone, (tuple(arguments), dict(keywords or {})))
    modules, modes = [], Modes(model)
    for mode in (True, False):
        with modes.set_to(mode):
            modules.append(_export(model, *example))
    training, evaluation = modules
    guards = {True: _guards_of(training), False: _guards_of(evaluation)}

    def check_inputs(specs: Mapping[str, ValueSpec], is_training: bool) -> None:
        guard, names = guards[is_training]
        with torch.device("meta"):
            values = [blank(specs[name]) for name in names]
        try:
            guard(*values)
        except AssertionError as error:
            raise InvalidModel(
                f"{type(model).__name__} was traced with other inputs, and its code takes another path for these "
                f"({error}): pad the sizes that differ, use equal batches, or pass a torch.nn.Sequential, which needs "
                "no tracing"
            ) from error

    own = _own(model)
    codegen: Any = training.graph._codegen
    spec = codegen.pytree_info.out_spec
    return graph_of_fx(
        model,
        ({**_attributes(training), **own}, {**_attributes(evaluation), **own}),
        _plain(training.graph),
        _plain(evaluation.graph),
        modes.frozen,
        lambda leaves: pytree.tree_unflatten(leaves, spec),
        check_inputs,
    )


def _guards_of(module: fx.GraphModule) -> tuple[Any, list[str]]:
    """Return the function that checks whether the graph is valid for inputs, and the names of its arguments."""
    for node in module.graph.nodes:
        if node.op == "call_module" and node.target == "_guards_fn":
            return module._guards_fn, [str(each) for each in node.args]
    return lambda: None, []


def _export(model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> fx.GraphModule:
    samples = torch.export.Dim.AUTO

    def shape_of(leaf: Any) -> Any:
        return {0: samples} if isinstance(leaf, torch.Tensor) and leaf.dim() else None

    shapes: Any = pytree.tree_map(shape_of, arguments)
    if keywords:
        shapes = (*shapes, *(pytree.tree_map(shape_of, value) for value in keywords.values()))
    before = random_state()[1:]  # without torch's generator: its draws are operations of the graph
    try:
        with warnings.catch_warnings(), refusing_what_export_leaves_out():
            warnings.simplefilter("ignore")
            program = torch.export.export(model, arguments, keywords, dynamic_shapes=shapes, strict=False)
            module: fx.GraphModule = program.module(check_guards=True)
    except Exception as error:  # the code of the model may raise anything
        raise InvalidModel(
            f"{type(model).__name__} cannot be exported ({first_line(error)}); its code may depend on the shapes of "
            "its inputs, not on their content"
        ) from error
    if random_state()[1:] != before:
        raise InvalidModel(
            f"{type(model).__name__} draws random numbers of Python or NumPy, which a trace draws only once: draw them "
            "with torch"
        )
    return module


def _plain(graph: fx.Graph) -> fx.Graph:
    """Remove the nodes that check the inputs from the graph, and return it."""
    for node in list(graph.nodes):
        if node.op == "call_module" and not node.users:
            graph.erase_node(node)
    return graph


def _attributes(module: fx.GraphModule) -> dict[str, Any]:
    """Return the attributes that the graph's nodes read, by name, such as constants of the export."""
    names = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    return {name: _attribute(module, name) for name in names}


def _attribute(module: nn.Module, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _own(model: nn.Module) -> dict[str, Any]:
    """Return the model's own parameters and buffers: stages must train these, not the export's copies."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
