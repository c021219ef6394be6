"""The backward pass of a stage in two parts: the gradients of its inputs, and later the gradients of its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node

Gradients: TypeAlias = list[torch.Tensor | None]


class SplitBackward:
    """A backward pass through the graph of a forward pass in two parts, cut where weights branch off.

    The first part runs the nodes from which an input can be reached. If such a node also leads, through another branch,
    to weights, its incoming gradient is kept; the second part runs the node again, for that branch only. (Qi, Wan,
    Huang and Lin, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, split linear layers so; this class splits any
    graph.) The gradient of a weight that several nodes reach is computed in the first part: two parts would change the
    order in which autograd sums it.

    Args:
        roots: outputs of the forward pass that have gradients.
        root_gradients: gradients of the roots; None for a scalar.
        inputs: leaves whose gradients the first part computes.
        weights: leaves whose gradients the second part computes.
    """

    def __init__(
        self,
        roots: Sequence[torch.Tensor],
        root_gradients: Sequence[torch.Tensor | None],
        inputs: Sequence[torch.Tensor],
        weights: Sequence[nn.Parameter],
    ) -> None:
        self._weights = list(weights)
        self._early: dict[int, torch.Tensor | None] = {}  # gradients of weights that the first part computed
        self._late: list[tuple[list[GradientEdge], Gradients, list[int]]] = []
        self.input_gradients: Gradients = [None] * len(inputs)
        self._not_own = _addresses(root_gradients)
        """Of memory that others use: a gradient of a weight may be the gradient of an output, as in x + bias."""
        graph = _Graph([_edge_of(root) for root in roots], inputs, weights)
        self._compute_inputs(graph, list(roots), list(root_gradients), list(inputs))
        self._not_own |= _addresses(self.input_gradients)

    @property
    def kept_nbytes(self) -> int:
        """Number of bytes of the gradients that the first part keeps for the second."""
        kept = chain(self._early.values(), *(gradients for _, gradients, _ in self._late))
        storages = [each.untyped_storage() for each in kept if each is not None]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def weight_gradients(self) -> Gradients:
        """Compute the second part, once; return the gradients of the weights, or None where a weight has none.

        Each has memory of its own, so that sums can be made in place.
        """
        results: Gradients = [self._early.pop(number, None) for number in range(len(self._weights))]
        late, self._late = self._late, []
        while late:
            edges, gradients, numbers = late.pop()
            self._not_own |= _addresses(gradients)
            weights = [self._weights[number] for number in numbers]
            values = torch.autograd.grad(edges, weights, gradients, allow_unused=True)
            for number, value in zip(numbers, values, strict=True):
                results[number] = value
        for number, result in enumerate(results):
            if result is not None:
                # Autograd gives weights that are added up, as in x * (a + b), one tensor for both.
                if not result.is_contiguous() or _addresses([result]) & self._not_own:
                    results[number] = result.clone(memory_format=torch.contiguous_format)
                self._not_own |= _addresses([results[number]])
        return results

    def _compute_inputs(
        self, graph: _Graph, roots: list[torch.Tensor], root_gradients: Gradients, inputs: list[torch.Tensor]
    ) -> None:
        sources = Counter(chain(graph.aside, *(numbers for _, numbers in graph.branches)))
        early = sorted(number for number, count in sources.items() if count > 1)
        branches = [(node, sorted(numbers.difference(early))) for node, numbers in graph.branches]
        branches = [(node, numbers) for node, numbers in branches if numbers]
        edges = [[GradientEdge(node, number) for number in sorted(graph.used_outputs[node])] for node, _ in branches]
        if graph.reach_inputs:
            targets: list[Any] = [*inputs, *(self._weights[number] for number in early), *chain(*edges)]
            values = iter(torch.autograd.grad(roots, targets, root_gradients, retain_graph=True, allow_unused=True))
            self.input_gradients = list(islice(values, len(inputs)))
            self._early = dict(zip(early, values, strict=False))
            for of_node, (_, numbers) in zip(edges, branches, strict=True):
                kept = [(edge, value) for edge, value in zip(of_node, values, strict=False) if value is not None]
                if kept:
                    self._late.append(([edge for edge, _ in kept], [value for _, value in kept], numbers))
        numbers = sorted(graph.aside.difference(early))
        if numbers:  # weights below roots that lead to no input
            both = zip(graph.roots, root_gradients, strict=True)
            aside = [(edge, value) for edge, value in both if edge.node not in graph.reach_inputs]
            self._late.append(([edge for edge, _ in aside], [value for _, value in aside], numbers))


def _addresses(tensors: Sequence[torch.Tensor | None]) -> set[int]:
    """Return the addresses of the memory of tensors."""
    strided = [each for each in tensors if each is not None and each.layout == torch.strided]
    return {each.untyped_storage().data_ptr() for each in strided}


class _Graph:
    """The graph of a forward pass.

    Attributes:
        roots: edges of the roots.
        reach_inputs: nodes from which an input can be reached.
        used_outputs: for each node, the numbers of its outputs that have edges.
        aside: numbers of the weights below roots that do not reach an input.
        branches: nodes that reach inputs, with the numbers of the weights on their other branches.
    """

    def __init__(
        self, roots: list[GradientEdge], inputs: Sequence[torch.Tensor], weights: Sequence[nn.Parameter]
    ) -> None:
        self.roots = roots
        self._weights = {id(weight): number for number, weight in enumerate(weights)}
        input_ids = {id(each) for each in inputs}
        order = _sorted_nodes([edge.node for edge in roots])
        self.reach_inputs: set[Node] = set()
        for node in order:
            is_input = id(getattr(node, "variable", None)) in input_ids
            if is_input or any(after in self.reach_inputs for after, _ in node.next_functions):
                self.reach_inputs.add(node)
        self.used_outputs: dict[Node, set[int]] = {}
        for edge in roots:
            self.used_outputs.setdefault(edge.node, set()).add(edge.output_nr)
        for node in order:
            for after, output in node.next_functions:
                if after is not None:
                    self.used_outputs.setdefault(after, set()).add(output)
        self.aside = self.weights_below([edge.node for edge in roots if edge.node not in self.reach_inputs])
        self.branches: list[tuple[Node, set[int]]] = []
        for node in order:
            if node in self.reach_inputs:
                nexts = [each for each, _ in node.next_functions if each is not None]
                numbers = self.weights_below([each for each in nexts if each not in self.reach_inputs])
                if numbers:
                    self.branches.append((node, numbers))

    def weights_below(self, starts: Sequence[Node]) -> set[int]:
        """Return the numbers of the weights that can be reached from some nodes."""
        numbers, seen, stack = set(), set(starts), list(starts)
        while stack:
            node = stack.pop()
            number = self._weights.get(id(getattr(node, "variable", None)))
            if number is not None:
                numbers.add(number)
            for after, _ in node.next_functions:
                if after is not None and after not in seen:
                    seen.add(after)
                    stack.append(after)
        return numbers


def _sorted_nodes(roots: Sequence[Node]) -> list[Node]:
    """Return all nodes in reverse topological order: each after the nodes that it leads to."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in roots]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(after, False) for after, _ in node.next_functions if after is not None and after not in seen]
    return order


def _edge_of(tensor: torch.Tensor) -> GradientEdge:
    edge: GradientEdge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge
