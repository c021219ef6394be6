"""A model as layers in an order in which each takes values of earlier ones, and stages as parts of that order."""

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
    """The smallest part of a model that a cut leaves whole.

    Args:
        name: of it, and of the value that it makes.
        inputs: names of the values that it takes.
        parameters: by their names in the model.
    """

    name: str
    inputs: tuple[str, ...]
    parameters: Mapping[str, nn.Parameter]


@dataclass(frozen=True, eq=False)
class LayerGraph:
    """The layers of a model.

    Args:
        layers: of it, in order.
        batch_inputs: names of what it takes.
        outputs: names of what it returns.
        make_stage: makes the stage of some layers, that takes and gives values by name.
        make_output: makes what the model returns out of the values of `outputs`.
        model: the whole.
        what: such layers are called, for messages.
        check_inputs: as of `SplitModel`.
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
        """Make stages.

        Args:
            cuts: where each begins, and the number of layers.

        Raises:
            InvalidArgument: a stage would be empty, or they are not all layers.
        """
        num_layers = len(self.layers)
        if len(cuts) < 2 or cuts[0] != 0 or cuts[-1] != num_layers or any(b <= a for a, b in pairwise(cuts)):
            raise InvalidArgument(
                f"stages begin at rising layers from 0 on, and end at {num_layers}, the number of {self.what}; not at "
                f"{list(cuts)}"
            )
        stages = []
        for first, last in pairwise(cuts):
            inputs, outputs = self.values_between(first, last)
            stages.append(self.make_stage(range(first, last), inputs, outputs))
        return SplitModel(
            tuple(stages), self.batch_inputs, self.outputs, self.make_output, self.model, self.check_inputs
        )

    def values_between(self, first: int, last: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return names of what the layers from `first` until before `last` take and give as a stage."""
        here = range(first, last)
        made = [self.layers[number].name for number in here]
        own = set(made)
        taken = dict.fromkeys(name for number in here for name in self.layers[number].inputs if name not in own)
        if last == len(self.layers):
            taken.update(dict.fromkeys(name for name in self.outputs if name not in own))
            return tuple(taken), self.outputs
        given = tuple(name for name in made if self._last_use[name] >= last)
        return tuple(taken), given

    def crossing(self, cut: int) -> list[str]:
        """Return names of the values that go from layers before `cut` to such after it."""
        return [layer.name for layer in self.layers[:cut] if self._last_use[layer.name] >= cut]

    @cached_property
    def _last_use(self) -> dict[str, int]:
        """The last layer that takes each value; the number of layers, of what the model returns."""
        found = {layer.name: -1 for layer in self.layers}
        for number, layer in enumerate(self.layers):
            found.update(dict.fromkeys(layer.inputs, number))
        found.update(dict.fromkeys(self.outputs, len(self.layers)))
        return found


def cuts_of(graph: LayerGraph, layers_per_partition: Sequence[int]) -> list[int]:
    """Return where stages begin that have so many layers.

    Raises:
        InvalidArgument: a stage is empty, or they are not as many layers as there are.
    """
    counts = list(layers_per_partition)
    if not counts or any(type(count) is not int or count < 1 for count in counts):
        raise InvalidArgument(f"every partition has 1 layer or more; layers_per_partition is {counts}")
    if sum(counts) != len(graph.layers):
        raise InvalidArgument(
            f"layers_per_partition {counts} are {sum(counts)} layers; the model has {len(graph.layers)} {graph.what}"
        )
    cuts = [0]
    for count in counts:
        cuts.append(cuts[-1] + count)
    return cuts
