"""Any torch module whose graph can be traced, as a graph of layers."""

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
    """Trace a module (`torch.fx.symbolic_trace`), as it is in training and as it is in evaluation.

    Modules of torch.nn stay whole; those around them are opened. What comes out has to follow from the same operations
    whatever the inputs are.

    Raises:
        InvalidModel: it cannot be traced: says what stands against it, and what would do.
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
        model: the whole.
        roots: what the names of modules, parameters and buffers belong to in each of the graphs.
        training, evaluation: with the same nodes, which may have other arguments; nodes of the first one whose values
            nobody takes may be missing in the second one.
        frozen: modules that stay in evaluation mode.
        unflatten: makes what the model returns of what the graph does; the same if not given.
        check_inputs: as of `LayerGraph`.

    Raises:
        InvalidModel: there are no operations, or others in evaluation.
    """
    if not _is_alike(training, evaluation):
        raise InvalidModel(
            f"{type(model).__name__} has other operations in evaluation than in training; its stages have the same in "
            "both: leave what belongs to one of them to the loss, or to modules such as torch.nn.Dropout"
        )
    nodes = [node for node in training.nodes if node.op in _COMPUTE]
    if not nodes:
        raise InvalidModel(f"{type(model).__name__} has no operation that could be put on a rank")
    own = dict(model.named_parameters(remove_duplicate=False))
    layers = tuple(
        Layer(node.name, tuple(dict.fromkeys(_values(node))), {name: own[name] for name in _parameters(node, own)})
        for node in nodes
    )
    result = next(node for node in training.nodes if node.op == "output").args[0]
    outputs = tuple(dict.fromkeys(node.name for node in _nodes_in(result)))

    def make_stage(here: range, inputs: tuple[str, ...], given: tuple[str, ...]) -> Stage:
        names = {layers[number].name for number in here}
        pairs = zip(roots, (training, evaluation), strict=True)
        modules = [_part(root, graph, names, inputs, given) for root, graph in pairs]
        return ModuleStage(modules[0], inputs, given, evaluation=modules[1], frozen=frozen)

    def make_output(values: Sequence[Any]) -> Any:
        found = dict(zip(outputs, values, strict=True))
        made = _filled(result, found)
        return made if unflatten is None else unflatten(list(made))

    batch = tuple(node.name for node in training.nodes if node.op == "placeholder")
    return LayerGraph(layers, batch, outputs, make_stage, make_output, model, "operations", check_inputs)


def _is_alike(training: fx.Graph, evaluation: fx.Graph) -> bool:
    """Whether the stages of the one can be cut out of the other by the names of its nodes and of what they take."""
    known = {node.name: node for node in training.nodes}
    found = {node.name for node in evaluation.nodes}
    return all(
        node.op == "get_attr" or (node.name in known and _is_alike_node(known[node.name], node))
        for node in evaluation.nodes
    ) and all(node.name in found or node.op == "get_attr" or not node.users for node in training.nodes)


def _is_alike_node(training: fx.Node, evaluation: fx.Node) -> bool:
    same = (training.op, str(training.target)) == (evaluation.op, str(evaluation.target))
    return same and set(_values(evaluation)) <= set(_values(training))


def _values(node: fx.Node) -> list[str]:
    """Names of what a node takes; parameters and buffers are not among it, as every stage has its own."""
    return [each.name for each in node.all_input_nodes if each.op != "get_attr"]


def _parameters(node: fx.Node, own: Mapping[str, nn.Parameter]) -> list[str]:
    names = [str(each.target) for each in node.all_input_nodes if each.op == "get_attr"]
    if node.op == "call_module":
        names += [name for name in own if name.startswith(f"{node.target}.")]
    return [name for name in names if name in own]


def _filled(tree: Any, values: Mapping[str, Any]) -> Any:
    """What a graph returns, with values for nodes, in plain containers instead of the immutable ones of graphs."""
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
    found: list[fx.Node] = []
    fx.node.map_arg(tree, found.append)
    return found


def _part(
    root: nn.Module | dict[str, Any],
    graph: fx.Graph,
    names: set[str],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
) -> fx.GraphModule:
    """The nodes of a stage as a module, with what they use of `root` under its names there."""
    part = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    by_name = {node.name: node for node in graph.nodes}
    for name in inputs:
        made[by_name[name]] = part.placeholder(name)

    def copied(node: fx.Node) -> fx.Node:
        if node not in made:
            assert node.op == "get_attr"
            made[node] = part.get_attr(str(node.target))
        return made[node]

    for node in graph.nodes:
        if node.name in names:
            made[node] = part.node_copy(node, copied)
    part.output(tuple(made[by_name[name]] for name in outputs))
    return fx.GraphModule(root, part, "Stage")
