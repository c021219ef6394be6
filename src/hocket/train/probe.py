"""What all values between stages look like, found out by the ranks that hold the stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hocket.comm import Communicator
from hocket.errors import HocketError, InvalidModel
from hocket.pipeline.placement import Placement
from hocket.train.specs import ValueSpec, spec_of
from hocket.train.split_model import SplitModel
from hocket.train.wiring import Wiring


@dataclass(frozen=True)
class Specs:
    """What values look like for micro-batches of one shape.

    Args:
        values: by name; parameters that stages share are among them.
        changed: values that a stage writes to, so that it has to get copies, by stage.
    """

    values: Mapping[str, ValueSpec]
    changed: Mapping[int, frozenset[str]]


class Probe:
    """Knows the specs of all values for each shape of micro-batches that has come; asks the stages for new ones.

    Args:
        split: the model.
        wiring: of it.
        placement: who holds its stages.
        comm: of one pipeline's ranks.
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
        self._known: dict[Any, Specs] = {}

    def specs_of(self, inputs: Mapping[str, Any], is_training: bool) -> Specs:
        """Return the specs for a micro-batch; called by all ranks of the pipeline, with inputs of the same shapes.

        Raises:
            InvalidModel: a stage cannot be run on such inputs; raised on every rank.
        """
        given = {name: spec_of(inputs[name], f"input {name!r}") for name in self._split.batch_inputs}
        key = (tuple(given.values()), is_training)
        if key not in self._known:
            self._known[key] = self._ask(given)
        return self._known[key]

    def _ask(self, given: Mapping[str, ValueSpec]) -> Specs:
        values = {**self._tied, **given}
        changed: dict[int, frozenset[str]] = {}
        for number, stage in enumerate(self._split.stages):
            answer: Any = None
            if self._ranks[number] == self._comm.rank:
                try:
                    answer = stage.infer([values[name] for name in stage.inputs], f"stage {number}")
                except HocketError as error:
                    answer = str(error)
            answer = self._comm.broadcast_object(answer, self._ranks[number])
            if isinstance(answer, str):
                raise InvalidModel(answer)
            values.update(zip(stage.outputs, answer.outputs, strict=True))
            names = frozenset(stage.inputs[place] for place in answer.changed)
            self._check_changed(number, names)
            changed[number] = names
        return Specs(values, changed)

    def _check_changed(self, stage: int, names: frozenset[str]) -> None:
        """What a later stage takes as well has to stay as it is: it would not see the change."""
        for hop in self._split.hops:
            if hop.from_stage == stage and hop.value in names:
                raise InvalidModel(
                    f"stage {stage} writes to {hop.value!r}, which stage {hop.to_stage} takes too: cut the model "
                    "elsewhere, or have the operation make a new tensor (inplace=False)"
                )
