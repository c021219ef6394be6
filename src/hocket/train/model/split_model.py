"""A model in stages, and the values that pass between stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from torch import nn

from hocket.errors import InvalidModel
from hocket.train.model.specs import ValueSpec
from hocket.train.model.stage import Stage

CheckInputs: TypeAlias = Callable[[Mapping[str, ValueSpec], bool], None]


class Hop(NamedTuple):
    """One transfer of a value from a stage to a later stage.

    Args:
        value: name of the value.
        from_stage: the stage that computes the value, or an earlier receiver of it, which forwards it.
        to_stage: the next stage that takes the value.
        parameter: the tensor, if the value is a parameter that stages share: then only its gradient is sent, back.
    """

    value: str
    from_stage: int
    to_stage: int
    parameter: nn.Parameter | None = None


class Tie(NamedTuple):
    """A parameter that several stages use.

    Args:
        parameter: the tensor.
        name: its name in the first of these stages.
        stages: the stages that use it, in order.
    """

    parameter: nn.Parameter
    name: str
    stages: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class SplitModel:
    """The stages of a model; each takes values of earlier stages and of the batch only.

    A value is sent from the stage that computes it to the first stage that takes it, from there to the second stage,
    and so on. Its gradient returns along the same path and is summed on the way. So the gradients are summed in the
    order in which autograd sums them for the unsplit model, bit for bit, and every stage receives the value once.

    Args:
        stages: the stages, in order.
        batch_inputs: names of the model's inputs, in order. Every stage has these values.
        outputs: names of the values that the model's result is made of; outputs of the last stage.
        make_output: makes the model's result from these values.
        model: the whole model, whose parts the stages are.
        check_inputs: called with the specs of the inputs by name, and with whether the model is training; raises
            InvalidModel if, for such inputs, the stages would not compute what the model does.

    Raises:
        InvalidModel: a stage takes a value that no earlier stage computes, or the last stage lacks an output.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        >>> split = hk.train.graph_of(model).split([0, 2, 3])
        >>> split.num_stages, [(hop.value, hop.from_stage, hop.to_stage) for hop in split.hops]
        (2, [('output of 1', 0, 1)])
    """

    stages: tuple[Stage, ...]
    batch_inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    make_output: Callable[[Sequence[Any]], Any]
    model: nn.Module
    check_inputs: CheckInputs | None = None

    def __post_init__(self) -> None:
        made = set(self.batch_inputs)
        for number, stage in enumerate(self.stages):
            unknown = [name for name in stage.inputs if name not in made]
            if unknown:
                raise InvalidModel(f"stage {number} takes value {unknown[0]!r}, which no earlier stage computes")
            made.update(stage.outputs)
        absent = [name for name in self.outputs if name not in self.stages[-1].outputs]
        if absent:
            raise InvalidModel(f"the last stage must have output {absent[0]!r}, which the model returns")

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    @cached_property
    def ties(self) -> tuple[Tie, ...]:
        """The parameters that several stages use."""
        users: defaultdict[int, list[tuple[int, str, nn.Parameter]]] = defaultdict(list)
        for number, stage in enumerate(self.stages):
            for name, parameter in stage.parameters().items():
                users[id(parameter)].append((number, name, parameter))
        return tuple(
            Tie(uses[0][2], uses[0][1], tuple(number for number, _, _ in uses))
            for uses in users.values()
            if len(uses) > 1
        )

    @cached_property
    def hops(self) -> tuple[Hop, ...]:
        """The transfers of all values between stages, in a fixed order."""
        takers: dict[str, list[int]] = {}
        for number, stage in enumerate(self.stages):
            for name in dict.fromkeys(stage.inputs):
                if name in takers:
                    takers[name].append(number)
            for name in stage.outputs:
                takers.setdefault(name, [number])
        return tuple(Hop(name, first, second) for name, stages in takers.items() for first, second in pairwise(stages))

    @cached_property
    def tied_hops(self) -> tuple[Hop, ...]:
        """The hops of shared parameters, if the gradient of every micro-batch is sent to the first stage that uses
        them."""
        return tuple(
            Hop(f"parameter {tie.name}", first, second, tie.parameter)
            for tie in self.ties
            if tie.parameter.requires_grad
            for first, second in pairwise(tie.stages)
        )

    def edges(self, *, with_ties: bool = False) -> tuple[tuple[int, int], ...]:
        """Return pairs of stages between which values pass, for `PipelineSchedule.edges`."""
        hops = self.hops + (self.tied_hops if with_ties else ())
        return tuple(sorted({(hop.from_stage, hop.to_stage) for hop in hops}))

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return all parameters by name, in the order of the stages; a shared parameter occurs once."""
        by_id: dict[int, tuple[str, nn.Parameter]] = {}
        for stage in self.stages:
            for name, parameter in stage.parameters().items():
                by_id.setdefault(id(parameter), (name, parameter))
        return dict(by_id.values())

    def buffers(self) -> dict[str, Any]:
        """Return all buffers by name."""
        return {name: buffer for stage in self.stages for name, buffer in stage.buffers().items()}
