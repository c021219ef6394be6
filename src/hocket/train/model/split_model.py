"""A model in stages, and which values go from where to where."""

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
    """A value on its way from one stage to another.

    Args:
        value: its name.
        from_stage: the stage that makes it, or one that needs it as well and hands it on.
        to_stage: the next stage that needs it.
        parameter: of a parameter that stages share, the tensor: it does not travel, its gradient does.
    """

    value: str
    from_stage: int
    to_stage: int
    parameter: nn.Parameter | None = None


class Tie(NamedTuple):
    """A parameter that several stages use.

    Args:
        parameter: the tensor, where all stages are at hand.
        name: in the whole model, as the first of them has it.
        stages: that use it, in order.
    """

    parameter: nn.Parameter
    name: str
    stages: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class SplitModel:
    """Stages of a model, in an order in which each takes values of earlier ones alone.

    A value goes from the stage that makes it to the first one that needs it, from there to the second one, and so on;
    its gradient comes back the same way and is added up on it. So the sum has the order in which autograd would add
    up where the model is whole, bit for bit, and every stage gets it once.

    Args:
        stages: of it.
        batch_inputs: names of what the model takes, in order: values that every stage has.
        outputs: names of what it returns: outputs of the last stage.
        make_output: makes what the model returns out of those values.
        model: the whole, of which the stages are parts.
        check_inputs: raises InvalidModel where the stages do not do with such inputs what the model does: called with
            their specs by name, and whether it is training.

    Raises:
        InvalidModel: a stage takes a value that no earlier one makes, or the last one does not give all outputs.
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
                raise InvalidModel(f"stage {number} takes value {unknown[0]!r}, which no earlier stage makes")
            made.update(stage.outputs)
        absent = [name for name in self.outputs if name not in self.stages[-1].outputs]
        if absent:
            raise InvalidModel(f"the last stage does not give {absent[0]!r}, which the model returns")

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    @cached_property
    def ties(self) -> tuple[Tie, ...]:
        """Parameters that several stages use."""
        users: defaultdict[int, list[tuple[int, str, nn.Parameter]]] = defaultdict(list)
        for number, stage in enumerate(self.stages):
            for name, parameter in stage.parameters().items():
                users[id(parameter)].append((number, name, parameter))
        return tuple(
            Tie(found[0][2], found[0][1], tuple(number for number, _, _ in found))
            for found in users.values()
            if len(found) > 1
        )

    @cached_property
    def hops(self) -> tuple[Hop, ...]:
        """Ways of all values between stages, in a fixed order."""
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
        """Ways of the gradients of parameters that several stages use, if every micro-batch's goes to the first one."""
        return tuple(
            Hop(f"parameter {tie.name}", first, second, tie.parameter)
            for tie in self.ties
            if tie.parameter.requires_grad
            for first, second in pairwise(tie.stages)
        )

    def edges(self, *, with_ties: bool = False) -> tuple[tuple[int, int], ...]:
        """Return pairs of stages that values go between, for `PipelineSchedule.edges`."""
        hops = self.hops + (self.tied_hops if with_ties else ())
        return tuple(sorted({(hop.from_stage, hop.to_stage) for hop in hops}))

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return all parameters by name, those that are shared once, in the order of the stages."""
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for stage in self.stages:
            for name, parameter in stage.parameters().items():
                found.setdefault(id(parameter), (name, parameter))
        return dict(found.values())

    def buffers(self) -> dict[str, Any]:
        """Return all buffers by name."""
        return {name: buffer for stage in self.stages for name, buffer in stage.buffers().items()}
