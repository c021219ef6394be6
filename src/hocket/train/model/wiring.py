"""The values that each stage receives from other stages and sends to them."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.train.model.split_model import Hop, SplitModel


@dataclass(frozen=True)
class StageEnds:
    """The hops that begin and end at a stage, by their indices.

    Args:
        inwards: hops of values that the stage receives.
        outwards: hops of values that the stage sends.
        tied_inwards: hops of shared parameters whose gradients the stage sends.
        tied_outwards: hops of shared parameters whose gradients the stage receives.
    """

    inwards: tuple[int, ...]
    outwards: tuple[int, ...]
    tied_inwards: tuple[int, ...]
    tied_outwards: tuple[int, ...]


class Wiring:
    """All hops between the stages of a model.

    Args:
        split: the model.
        with_ties: True: the gradient of a shared parameter is sent from stage to stage in every micro-batch; False: it
            is summed at the end of a step.
    """

    def __init__(self, split: SplitModel, with_ties: bool) -> None:
        self.hops: tuple[Hop, ...] = split.hops + (split.tied_hops if with_ties else ())
        self.edges = split.edges(with_ties=with_ties)
        self._ends = tuple(self._ends_of(stage) for stage in range(split.num_stages))

    def of(self, stage: int) -> StageEnds:
        """Return the hops that begin and end at a stage."""
        return self._ends[stage]

    def _ends_of(self, stage: int) -> StageEnds:
        def numbers(end: str, tied: bool) -> tuple[int, ...]:
            return tuple(
                number
                for number, hop in enumerate(self.hops)
                if getattr(hop, end) == stage and (hop.parameter is not None) == tied
            )

        return StageEnds(
            numbers("to_stage", False),
            numbers("from_stage", False),
            numbers("to_stage", True),
            numbers("from_stage", True),
        )
