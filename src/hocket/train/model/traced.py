"""A graph of layers of any torch module that torch.fx can trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import fx, nn

from hocket.errors import InvalidModel
from hocket.train.model.layer_graph import Layer, LayerGraph
from hocket.train.model.modes import Modes
from hocket.train.model.module_stage import ModuleStage
from hocket.train.model.split_model import CheckInputs
from hocket.train.model.stage import Stage
from hocket.train.model.tracing import trace

_COMPUTE = ("call_module", "call_function", "call_method")


def graph_of_module(model: nn.Module) -> LayerGraph:
    """Trace a module (`torch.fx.symbolic_trace`) in training mode and in evaluation mode.

    Each module of torch.nn is one operation; the code of all other modules is traced. The module must call the same
    operations for all inputs.

    Raises:
        InvalidModel: the module cannot be traced; the message says why, and what would be right.
    """
    modes = Modes(model)
    training, evaluation = trace(model, modes)
    return graph_of_fx(model, (model, model), training, evaluation, modes.frozen)


def graph_of_fx(
    model: nn.Module,
    roots: tuple[nn.Module | dict[str, Any], nn.Module | dict[str, Any]],
    training: fx.Graph,
    evaluation: fx.Graph,
    frozen: Collection[nn.Module],
    unflatten: Callable[[list[Any]], Any] | None = None,
    check_inputs: CheckInputs | None = None,
) -> LayerGraph:
    """Return the layers of traced graphs.

    Args:
        model: the whole model.
        roots: for each graph, the module or dictionary in which its nodes' names of modules, parameters and buffers are
            looked up.
        training, evaluation: graphs with the same nodes, whose arguments may differ. Nodes of `training` whose values
            are unused may be missing in `evaluation`.
        frozen: modules that stay in evaluation mode.
        unflatten: makes the model's result from the graph's; None: they are equal.
        check_inputs: see `LayerGraph`.

    Raises:
        InvalidModel: the graphs have no operations, or different ones.
    """
    if not _have_same_nodes(training, evaluation):
        raise InvalidModel(
            f"{type(model).__name__} has other operations in evaluation than in training, and its stages must have the "
            "same in both: move operations of one mode into the loss, or use modules such as torch.nn.Dropout"
        )
    nodes = [node for node in training.nodes if node.op in _COMPUTE]
    if not nodes:
        raise InvalidModel(f"{type(model).__name__} has no operation; a model needs 1 or more")
    own = dict(model.named_parameters(remove_duplicate=False))
    layers = tuple(
        Layer(node.name, tuple(dict.fromkeys(_values(node))), {name: own[name] for name in _parameters(node, own)})
        for node in nodes
    )
    result = next(node for node in training.nodes if node.op == "output").args[0]
    outputs = tuple(dict.fromkeys(node.name for node in _nodes_in(result)))

    def make_stage(here: range, stage_inputs: tuple[str, ...], stage_outputs: tuple[str, ...]) -> Stage:
        names = {layers[number].name for number in here}
        pairs = zip(roots, (training, evaluation), strict=True)
        modules = [_part(root, graph, names, stage_inputs, stage_outputs) for root, graph in pairs]
        return ModuleStage(modules[0], stage_inputs, stage_outputs, evaluation=modules[1], frozen=frozen)

    def make_output(values: Sequence[Any]) -> Any:
        filled = _filled(result, dict(zip(outputs, values, strict=True)))
        return filled if unflatten is None else unflatten(list(filled))

    batch = tuple(node.name for node in training.nodes if node.op == "placeholder")
    return LayerGraph(layers, batch, outputs, make_stage, make_output, model, "operations", check_inputs)


def _have_same_nodes(training: fx.Graph, evaluation: fx.Graph) -> bool:
    """Return whether stages of the training graph can be cut from the evaluation graph by the same names."""
    by_name = {node.name: node for node in training.nodes}
    names = {node.name for node in evaluation.nodes}
    return all(
        node.op == "get_attr" or (node.name in by_name and _are_same_node(by_name[node.name], node))
        for node in evaluation.nodes
    ) and all(node.name in names or node.op == "get_attr" or not node.users for node in training.nodes)


def _are_same_node(training: fx.Node, evaluation: fx.Node) -> bool:
    same = (training.op, str(training.target)) == (evaluation.op, str(evaluation.target))
    return same and set(_values(evaluation)) <= set(_values(training))


def _values(node: fx.Node) -> list[str]:
    """Return the names of a node's inputs without parameters and buffers, which every stage has itself."""
    return [each.name for each in node.all_input_nodes if each.op != "get_attr"]


def _parameters(node: fx.Node, own: Mapping[str, nn.Parameter]) -> list[str]:
    names = [str(each.target) for each in node.all_input_nodes if each.op == "get_attr"]
    if node.op == "call_module":
        names += [name for name in own if name.startswith(f"{node.target}.")]
    return [name for name in names if name in own]


def _filled(tree: Any, values: Mapping[str, Any]) -> Any:
    """Return a graph's result with values in place of nodes, in plain containers instead of fx's immutable ones."""
    if isinstance(tree, fx.Node):
        return values[tree.name]
    if isinstance(tree, dict):
        return {key: _filled(each, values) for key, each in tree.items()}
    if isinstance(tree, list):
        return [_filled(each, values) for each in tree]
    if isinstance(tree, tuple):
        parts = [_filled(each, values) for each in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


def _nodes_in(tree: Any) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    fx.node.map_arg(tree, nodes.append)
    return nodes


def _part(
    root: nn.Module | dict[str, Any],
    graph: fx.Graph,
    names: set[str],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
) -> fx.GraphModule:
    """Return the nodes of a stage as a module, with the modules and tensors of `root` under their names."""
    part = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    by_name = {node.name: node for node in graph.nodes}
    for name in inputs:
        copies[by_name[name]] = part.placeholder(name)

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            assert node.op == "get_attr"
            copies[node] = part.get_attr(str(node.target))
        return copies[node]

    for node in graph.nodes:
        if node.name in names:
            copies[node] = part.node_copy(node, copied)
    part.output(tuple(copies[by_name[name]] for name in outputs))
    return fx.GraphModule(root, part, "Stage")
