"""The backward pass of a stage in two parts: the gradients of its inputs, and later those of its weights."""

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
    """One backward pass through the graph that a forward pass has left, cut where weights branch off.

    The nodes from which an input can be reached are the way of the gradients of inputs. Where such a node also leads,
    by another branch, to weights, the gradient that comes to it is caught on its way; later the node is run once more,
    for that branch alone. (As Qi, Wan, Huang and Lin, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, split it
    for linear layers; here for any graph.) A weight that can be reached from several places has its gradient in the
    first part: autograd adds up there in an order that two parts would change.

    Args:
        roots: what the forward pass gave, that gradients come back for.
        root_gradients: of each; None for a scalar.
        inputs: leaves whose gradients the first part gives.
        weights: leaves whose gradients the second part gives.
    """

    def __init__(
        self,
        roots: Sequence[torch.Tensor],
        root_gradients: Sequence[torch.Tensor | None],
        inputs: Sequence[torch.Tensor],
        weights: Sequence[nn.Parameter],
    ) -> None:
        self._weights = list(weights)
        self._early: dict[int, torch.Tensor | None] = {}  # gradients of weights that are known since the first part
        self._late: list[tuple[list[GradientEdge], Gradients, list[int]]] = []
        self.input_gradients: Gradients = [None] * len(inputs)
        graph = _Graph([_edge_of(root) for root in roots], inputs, weights)
        self._compute_inputs(graph, list(roots), list(root_gradients), list(inputs))

    @property
    def kept_nbytes(self) -> int:
        """Bytes of the gradients that the second part needs from the first one."""
        kept = chain(self._early.values(), *(gradients for _, gradients, _ in self._late))
        storages = [each.untyped_storage() for each in kept if each is not None]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def weight_gradients(self) -> Gradients:
        """Compute the second part, once; return the gradients of the weights, None of those without any."""
        found: Gradients = [self._early.pop(number, None) for number in range(len(self._weights))]
        late, self._late = self._late, []
        while late:
            edges, gradients, numbers = late.pop()
            wanted = [self._weights[number] for number in numbers]
            values = torch.autograd.grad(edges, wanted, gradients, allow_unused=True)
            for number, value in zip(numbers, values, strict=True):
                found[number] = value
        return found

    def _compute_inputs(
        self, graph: _Graph, roots: list[torch.Tensor], root_gradients: Gradients, inputs: list[torch.Tensor]
    ) -> None:
        sources = Counter(chain(graph.aside, *(numbers for _, numbers in graph.branches)))
        early = sorted(number for number, count in sources.items() if count > 1)
        branches = [(node, sorted(numbers.difference(early))) for node, numbers in graph.branches]
        branches = [(node, numbers) for node, numbers in branches if numbers]
        edges = [[GradientEdge(node, number) for number in sorted(graph.used_outputs[node])] for node, _ in branches]
        if graph.on_the_way:
            wanted: list[Any] = [*inputs, *(self._weights[number] for number in early), *chain(*edges)]
            values = iter(torch.autograd.grad(roots, wanted, root_gradients, retain_graph=True, allow_unused=True))
            self.input_gradients = list(islice(values, len(inputs)))
            self._early = dict(zip(early, values, strict=False))
            for of_node, (_, numbers) in zip(edges, branches, strict=True):
                caught = [(edge, value) for edge, value in zip(of_node, values, strict=False) if value is not None]
                if caught:
                    self._late.append(([edge for edge, _ in caught], [value for _, value in caught], numbers))
        numbers = sorted(graph.aside.difference(early))
        if numbers:  # of roots that lead to weights alone
            both = zip(graph.roots, root_gradients, strict=True)
            aside = [(edge, value) for edge, value in both if edge.node not in graph.on_the_way]
            self._late.append(([edge for edge, _ in aside], [value for _, value in aside], numbers))


class _Graph:
    """The nodes that a forward pass has left, and which of them lead to inputs."""

    def __init__(
        self, roots: list[GradientEdge], inputs: Sequence[torch.Tensor], weights: Sequence[nn.Parameter]
    ) -> None:
        self.roots = roots
        self._weights = {id(weight): number for number, weight in enumerate(weights)}
        wanted = {id(each) for each in inputs}
        order = _sorted_nodes([edge.node for edge in roots])
        self.on_the_way: set[Node] = set()
        for node in order:
            is_input = id(getattr(node, "variable", None)) in wanted
            if is_input or any(after in self.on_the_way for after, _ in node.next_functions):
                self.on_the_way.add(node)
        self.used_outputs: dict[Node, set[int]] = {}
        for edge in roots:
            self.used_outputs.setdefault(edge.node, set()).add(edge.output_nr)
        for node in order:
            for after, output in node.next_functions:
                if after is not None:
                    self.used_outputs.setdefault(after, set()).add(output)
        self.aside = self.weights_below([edge.node for edge in roots if edge.node not in self.on_the_way])
        self.branches: list[tuple[Node, set[int]]] = []
        for node in order:
            if node in self.on_the_way:
                nexts = [each for each, _ in node.next_functions if each is not None]
                numbers = self.weights_below([each for each in nexts if each not in self.on_the_way])
                if numbers:
                    self.branches.append((node, numbers))

    def weights_below(self, starts: Sequence[Node]) -> set[int]:
        """Return numbers of the weights that can be reached from some nodes."""
        found, seen, left = set(), set(starts), list(starts)
        while left:
            node = left.pop()
            number = self._weights.get(id(getattr(node, "variable", None)))
            if number is not None:
                found.add(number)
            for after, _ in node.next_functions:
                if after is not None and after not in seen:
                    seen.add(after)
                    left.append(after)
        return found


def _sorted_nodes(roots: Sequence[Node]) -> list[Node]:
    """All nodes, each after those that it leads to."""
    order: list[Node] = []
    seen: set[Node] = set()
    left: list[tuple[Node, bool]] = [(root, False) for root in roots]
    while left:
        node, is_done = left.pop()
        if is_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            left.append((node, True))
            left += [(after, False) for after, _ in node.next_functions if after is not None and after not in seen]
    return order


def _edge_of(tensor: torch.Tensor) -> GradientEdge:
    edge: GradientEdge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge
