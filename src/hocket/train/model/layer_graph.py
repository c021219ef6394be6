"""A model as a sequence of layers, each of which takes values of earlier layers; stages are parts of the sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

from torch import nn

from hocket.errors import InvalidArgument
from hocket.train.model.split_model import CheckInputs, SplitModel
from hocket.train.model.stage import Stage

MakeStage: TypeAlias = Callable[[range, tuple[str, ...], tuple[str, ...]], Stage]


@dataclass(frozen=True)
class Layer:
    """The smallest part of a model: cuts lie between layers.

    Args:
        name: name of the layer, and of the value that it computes.
        inputs: names of the values that it takes.
        parameters: its parameters, by their names in the model.

    Examples:
        >>> import torch
        >>> layer = hk.train.graph_of(torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU())).layers[0]
        >>> layer.name, layer.inputs, list(layer.parameters)
        ('output of 0', ('input',), ['0.weight', '0.bias'])
    """

    name: str
    inputs: tuple[str, ...]
    parameters: Mapping[str, nn.Parameter]


@dataclass(frozen=True, eq=False)
class LayerGraph:
    """The layers of a model.

    Args:
        layers: the layers, in order.
        batch_inputs: names of the model's inputs.
        outputs: names of the values that the model's result is made of.
        make_stage: (layer indices, names of inputs, names of outputs) -> the stage of these layers.
        make_output: makes the model's result from the values of `outputs`.
        model: the whole model.
        what: the word for such layers in messages.
        check_inputs: see `SplitModel`.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        >>> graph = hk.train.graph_of(model)
        >>> graph.crossing(2)
        ['output of 1']
        >>> [stage.outputs for stage in graph.split([0, 2, 3]).stages]
        [('output of 1',), ('output of 2',)]
    """

    layers: tuple[Layer, ...]
    batch_inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    make_stage: MakeStage
    make_output: Callable[[Sequence[Any]], Any]
    model: nn.Module
    what: str = "layers"
    check_inputs: CheckInputs | None = None

    def split(self, cuts: Sequence[int]) -> SplitModel:
        """Split the model into stages.

        Args:
            cuts: index of the first layer of each stage, and the number of layers at the end.

        Raises:
            InvalidArgument: a stage would be empty, or the stages do not cover all layers.
        """
        num_layers = len(self.layers)
        if len(cuts) < 2 or cuts[0] != 0 or cuts[-1] != num_layers or any(b <= a for a, b in pairwise(cuts)):
            raise InvalidArgument(
                f"cuts must rise from 0 to {num_layers}, the number of {self.what}, not be {list(cuts)}"
            )
        stages = []
        for first, last in pairwise(cuts):
            inputs, outputs = self.values_between(first, last)
            stages.append(self.make_stage(range(first, last), inputs, outputs))
        return SplitModel(
            tuple(stages), self.batch_inputs, self.outputs, self.make_output, self.model, self.check_inputs
        )

    def values_between(self, first: int, last: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the inputs and outputs of the stage of layers `first` to `last` - 1."""
        here = range(first, last)
        computed = [self.layers[number].name for number in here]
        own = set(computed)
        inputs = dict.fromkeys(name for number in here for name in self.layers[number].inputs if name not in own)
        if last == len(self.layers):
            inputs.update(dict.fromkeys(name for name in self.outputs if name not in own))
            return tuple(inputs), self.outputs
        outputs = tuple(name for name in computed if self._last_use[name] >= last)
        return tuple(inputs), outputs

    def crossing(self, cut: int) -> list[str]:
        """Return names of the values that layers before `cut` compute and layers from `cut` on take."""
        return [layer.name for layer in self.layers[:cut] if self._last_use[layer.name] >= cut]

    @cached_property
    def _last_use(self) -> dict[str, int]:
        """For each value, the index of the last layer that takes it; for the model's outputs, the number of layers."""
        last_use = {layer.name: -1 for layer in self.layers}
        for number, layer in enumerate(self.layers):
            last_use.update(dict.fromkeys(layer.inputs, number))
        last_use.update(dict.fromkeys(self.outputs, len(self.layers)))
        return last_use


def cuts_of(graph: LayerGraph, layers_per_partition: Sequence[int]) -> list[int]:
    """Return the cuts of stages with these numbers of layers.

    Raises:
        InvalidArgument: a stage is empty, or the sum is not the number of layers.
    """
    counts = list(layers_per_partition)
    if not counts or any(type(count) is not int or count < 1 for count in counts):
        raise InvalidArgument(f"layers_per_partition must be ints of 1 or more, not {counts}")
    if sum(counts) != len(graph.layers):
        raise InvalidArgument(
            f"layers_per_partition must sum to {len(graph.layers)}, the number of {graph.what}; {counts} sum to "
            f"{sum(counts)}"
        )
    cuts = [0]
    for count in counts:
        cuts.append(cuts[-1] + count)
    return cuts
