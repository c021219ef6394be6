"""A rank's part of a schedule: the facts that do not change from step to step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from hocket.errors import InvalidArgument
from hocket.pipeline.action import Action
from hocket.pipeline.checks.validate import validate
from hocket.pipeline.costs import CostModel
from hocket.pipeline.kind import kinds
from hocket.pipeline.passes.gradient_sync import add_gradient_sync
from hocket.pipeline.schedule import PipelineSchedule
from hocket.train.model.split_model import SplitModel
from hocket.train.model.wiring import Wiring
from hocket.train.run.crossings import Crossings, crossings_of


@dataclass(frozen=True, eq=False)
class Layout:
    """The actions, stages and micro-batches of a rank, and the ranks that hold the other stages.

    With a schedule of D ranks, rank r of replica i is rank i D + r of the job.

    Args:
        schedule: a table of one step of one replica, with the edges of the model.
        split: the model in stages.
        wiring: hops between the stages.
        rank: this rank's number in its replica.
        replica: the replica of this rank.
        num_replicas: number of replicas of the pipeline.
        seed: seed of random numbers.
    """

    schedule: PipelineSchedule
    split: SplitModel
    wiring: Wiring
    rank: int
    replica: int
    num_replicas: int
    seed: int

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """All actions of this rank in a training step."""
        return tuple(self.schedule.actions[self.rank])

    @cached_property
    def forward_actions(self) -> tuple[Action, ...]:
        """The actions of this rank that belong to forward passes."""
        return tuple(action for action in self.actions if kinds()[action.kind].is_of_forward)

    @cached_property
    def crossings(self) -> Crossings:
        """What the kinds of actions receive and send."""
        return crossings_of(self.schedule.columns.kinds)

    @cached_property
    def recomputed(self) -> frozenset[tuple[int, int]]:
        """Pairs (pipe, stage) of this rank whose forward passes are repeated before their backward passes."""
        again = self.schedule.columns.counted_as("R")
        return frozenset((action.pipe, action.stage) for action in self.actions if action.kind in again)

    @cached_property
    def own_stages(self) -> tuple[int, ...]:
        """Stages that this rank holds and trains, each once."""
        return tuple(sorted({stage for _, stage in self.schedule.placement.stages_of(self.rank)}))

    @cached_property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """For each stage, the ranks of the job that hold its copies: replica after replica, pipe after pipe."""
        return tuple(
            tuple(
                replica * self.schedule.num_ranks + ranks[stage]
                for replica in range(self.num_replicas)
                for ranks in self.schedule.placement.ranks
            )
            for stage in range(self.schedule.num_stages)
        )

    @cached_property
    def first_holders(self) -> dict[int, int]:
        """For each parameter, by its id, the first rank that trains it."""
        first: dict[int, int] = {}
        for stage, each in enumerate(self.split.stages):
            for parameter in each.parameters().values():
                first.setdefault(id(parameter), self.holders[stage][0])
        return first

    @property
    def job_rank(self) -> int:
        """This rank's number among all replicas."""
        return self.job_rank_of(self.rank)

    @property
    def first_micro_batch(self) -> int:
        """Index of this replica's first micro-batch among those of all replicas."""
        return self.replica * self.schedule.num_micro_batches

    def job_rank_of(self, rank: int) -> int:
        """Return the job's number of a rank of this replica."""
        return self.replica * self.schedule.num_ranks + rank

    def name_of(self, rank: int) -> str:
        """Return the name of a rank of this replica in messages."""
        return f"rank {self.job_rank_of(rank)}"

    def is_first_holder(self, parameter: torch.nn.Parameter) -> bool:
        """Return whether this rank is the first rank that trains a parameter."""
        return self.first_holders[id(parameter)] == self.job_rank


def lay_out(
    schedule: PipelineSchedule, split: SplitModel, rank: int, num_ranks: int, *, exact: bool, seed: int
) -> Layout:
    """Return the layout of a schedule and a model over the ranks of a job.

    Args:
        schedule: a table of one step. If copies of stages need sums of gradients and the table has none, they are
            added.
        split: the model, with as many stages as the table.
        rank, num_ranks: this rank of the job, and the number of ranks.
        exact, seed: see `PipelineExecutor`.

    Raises:
        InvalidSchedule: see `hocket.pipeline.validate`.
        InvalidArgument: the number of ranks or stages does not fit the table.
    """
    wiring = Wiring(split, with_ties=exact)
    schedule = _completed(schedule, split, wiring, num_ranks)
    replica, own = divmod(rank, schedule.num_ranks)
    return Layout(schedule, split, wiring, own, replica, num_ranks // schedule.num_ranks, seed)


def _completed(schedule: PipelineSchedule, split: SplitModel, wiring: Wiring, num_ranks: int) -> PipelineSchedule:
    """Return the schedule with the model's edges and with sums of gradients."""
    if schedule.num_steps > 1:
        raise InvalidArgument(f"the table must be of one step, which is repeated, not of {schedule.num_steps}")
    if schedule.num_stages != split.num_stages:
        raise InvalidArgument(
            f"the table has {schedule.num_stages} stages, and the model was split into {split.num_stages}: split it "
            "into as many as the table has"
        )
    if num_ranks % schedule.num_ranks:
        raise InvalidArgument(
            f"the number of ranks must be a multiple of {schedule.num_ranks}, the ranks of the table, not {num_ranks}"
        )
    has_messages = any(kinds()[kind].message for kind in schedule.columns.kinds)
    if schedule.edges != wiring.edges:
        if has_messages:
            raise InvalidArgument(
                f"the table has messages for edges {schedule.edges}, and the model has edges {wiring.edges}: set "
                "`edges` before messages are lowered"
            )
        schedule = replace(schedule, edges=wiring.edges)
    validate(schedule)
    if not schedule.columns.counted_as("SYNC_START"):
        costs = CostModel(num_replicas=num_ranks // schedule.num_ranks)
        schedule = add_gradient_sync(schedule, costs=costs)
    return schedule
