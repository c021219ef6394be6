"""The specs of all values between stages, which the ranks that hold the stages infer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hocket.comm import Communicator
from hocket.errors import HocketError, InvalidModel
from hocket.pipeline.placement import Placement
from hocket.train.model.specs import ValueSpec, spec_of
from hocket.train.model.split_model import SplitModel
from hocket.train.model.wiring import Wiring


@dataclass(frozen=True)
class Specs:
    """The specs of all values for micro-batches of one shape.

    Args:
        values: specs by name, including the parameters that stages share.
        changed: by stage, names of the inputs that the stage writes to; it must get copies of these.
    """

    values: Mapping[str, ValueSpec]
    changed: Mapping[int, frozenset[str]]


class Probe:
    """Caches the specs of all values by the shapes of micro-batches; for new shapes the stages infer them.

    Args:
        split: the model.
        wiring: hops between its stages.
        placement: placement of its stages.
        comm: a communicator of the ranks of one pipeline.
    """

    def __init__(self, split: SplitModel, wiring: Wiring, placement: Placement, comm: Communicator) -> None:
        self._split = split
        self._ranks = placement.ranks[0]
        self._comm = comm
        self._tied = {
            hop.value: spec_of(hop.parameter, f"value {hop.value!r}")
            for hop in wiring.hops
            if hop.parameter is not None
        }
        self._known: OrderedDict[Any, Specs] = OrderedDict()

    def specs_of(self, inputs: Mapping[str, Any], is_training: bool) -> Specs:
        """Return the specs for a micro-batch; called by all ranks of the pipeline, with inputs of the same shapes.

        Raises:
            InvalidModel: a stage cannot be run on such inputs; raised on every rank.
        """
        given = {name: spec_of(inputs[name], f"input {name!r}") for name in self._split.batch_inputs}
        key = (tuple(given.values()), is_training)
        if key not in self._known:
            if self._split.check_inputs is not None:
                self._split.check_inputs(given, is_training)
            self._known[key] = self._infer(given, is_training)
            if len(self._known) > _MOST_SHAPES:
                self._known.popitem(last=False)
        return self._known[key]

    def _infer(self, given: Mapping[str, ValueSpec], is_training: bool) -> Specs:
        values = {**self._tied, **given}
        memory = _Memory()
        changed: dict[int, frozenset[str]] = {}
        for number, stage in enumerate(self._split.stages):
            answer: Any = None
            if self._ranks[number] == self._comm.rank:
                stage.train(is_training)
                try:
                    answer = stage.infer([values[name] for name in stage.inputs], f"stage {number}")
                except HocketError as error:
                    answer = str(error)
            answer = self._comm.broadcast_object(answer, self._ranks[number])
            if isinstance(answer, str):
                raise InvalidModel(answer)
            names = frozenset(stage.inputs[place] for place in answer.changed)
            self._check_changed(number, names, memory)
            self._check_updated(number, answer.updated)
            changed[number] = names
            values.update(zip(stage.outputs, answer.outputs, strict=True))
            places = (*stage.inputs, *stage.outputs)
            for first, second in answer.aliases:
                memory.join(places[first], places[second])
        return Specs(values, changed)

    def _check_changed(self, stage: int, names: frozenset[str], memory: _Memory) -> None:
        """Refuse writes to a value that a later stage takes as well: that stage would not see them."""
        for later, each in enumerate(self._split.stages[stage:], stage):
            for name in each.inputs:
                written = names if later > stage else names - {name}
                if written & memory.sharing(name):
                    raise InvalidModel(
                        f"stage {stage} writes to {min(written & memory.sharing(name))!r}, which stage {later} takes "
                        f"too{'' if name in written else f', as {name!r}'}: cut the model elsewhere, or make the "
                        "operation return a new tensor (inplace=False)"
                    )

    def _check_updated(self, stage: int, names: Sequence[str]) -> None:
        """Refuse that another stage uses a buffer, such as running statistics, that this stage writes to."""
        buffers = self._split.stages[stage].buffers()
        written = {buffers[name].data_ptr(): name for name in names}
        for other, each in enumerate(self._split.stages):
            for buffer in each.buffers().values() if other != stage else ():
                if buffer.data_ptr() in written:
                    raise InvalidModel(
                        f"stages {min(stage, other)} and {max(stage, other)} share {written[buffer.data_ptr()]!r}, "
                        "which every forward pass changes: cut the model so that one stage has both uses"
                    )


class _Memory:
    """Sets of names of values that share memory."""

    def __init__(self) -> None:
        self._groups: dict[str, set[str]] = {}

    def join(self, first: str, second: str) -> None:
        both = self.sharing(first) | self.sharing(second)
        for name in both:
            self._groups[name] = both

    def sharing(self, name: str) -> set[str]:
        """Return the names of the values that share memory with a value, including its own."""
        return self._groups.get(name, {name})


_MOST_SHAPES = 256
