"""A pipeline schedule: for every rank, the actions of a training step in program order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hocket.errors import InvalidArgument, InvalidSchedule
from hocket.pipeline.action import Action
from hocket.pipeline.columns import Columns, make_columns
from hocket.pipeline.dependencies import Dependencies, find_dependencies
from hocket.pipeline.placement import Placement

_MOST_PASSES = 1 << 28


@dataclass(frozen=True, eq=False)
class PipelineSchedule:
    """A table with the program of every rank: its actions in order. `simulate` computes their times.

    Only kinds and numbers are checked here; `validate` checks whether the schedule is correct.

    Args:
        name: name of the schedule.
        placement: placement of the stages on ranks.
        num_micro_batches: micro-batches per step, over all pipes.
        actions: for each rank, its actions in order.
        edges: pairs of a stage and a later stage that takes its output; a chain of all stages if not given.
        num_steps: training steps in the table.
        parameters: parameters of the schedule.

    Raises:
        InvalidArgument: an edge or a number is out of range.
        InvalidSchedule: an action has an unregistered kind or an invalid number, or the number of ranks is wrong.

    Examples:
        >>> forward, backward = hk.pipeline.Action("F", 0, 0), hk.pipeline.Action("B", 0, 0)
        >>> schedule = hk.pipeline.PipelineSchedule("mine", hk.pipeline.linear(1), 1, [[forward, backward]])
        >>> schedule
        <mine: 1 ranks, 1 micro-batches>
        >>> len(schedule), schedule.is_chain
        (2, True)
    """

    name: str
    placement: Placement
    num_micro_batches: int
    actions: Sequence[Sequence[Action]]
    edges: tuple[tuple[int, int], ...] = ()
    num_steps: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        num_stages = self.placement.num_stages
        actions = tuple(
            tuple(each if type(each) is Action else Action._make(each) for each in row) for row in self.actions
        )
        edges = tuple(sorted({(first, second) for first, second in self.edges})) or _chain(num_stages)
        object.__setattr__(self, "actions", actions)
        object.__setattr__(self, "edges", edges)
        for first, second in self.edges:
            if not 0 <= first < second < num_stages:
                raise InvalidArgument(
                    f"an edge must go from a stage to a later one, below {num_stages}; got ({first}, {second})"
                )
        for name in ("num_micro_batches", "num_steps"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InvalidArgument(f"{name} must be an integer of 1 or more, got {value!r}")
        if self.num_micro_batches * self.num_steps * num_stages > _MOST_PASSES:
            raise InvalidArgument(
                f"{self.num_micro_batches} micro-batches of {num_stages} stages and {self.num_steps} steps are too "
                f"many: the limit is {_MOST_PASSES} passes"
            )
        if len(self.actions) != self.num_ranks:
            raise InvalidSchedule(
                f"the table needs one row for each of {self.num_ranks} ranks of the placement, got {len(self.actions)}"
            )

    @property
    def num_ranks(self) -> int:
        return self.placement.num_ranks

    @property
    def num_stages(self) -> int:
        return self.placement.num_stages

    @property
    def num_pipes(self) -> int:
        return self.placement.num_pipes

    @property
    def is_chain(self) -> bool:
        """Whether every stage takes exactly the output of the stage before it."""
        return self.edges == _chain(self.num_stages)

    def __len__(self) -> int:
        """Number of actions in the table."""
        return len(self.columns)

    def __eq__(self, other: object) -> bool:
        """Whether both have the same content, apart from name and parameters."""
        if not isinstance(other, PipelineSchedule):
            return NotImplemented
        return self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def __repr__(self) -> str:
        given = "".join(f", {name}={value}" for name, value in self.parameters.items())
        return f"<{self.name}: {self.num_ranks} ranks, {self.num_micro_batches} micro-batches{given}>"

    @property
    def _content(self) -> tuple[Any, ...]:
        return self.placement, self.num_micro_batches, self.num_steps, self.edges, self.actions

    def action(self, row: int) -> Action:
        """Return an action by its row number in `columns`."""
        rank, index = self.place(row)
        return self.actions[rank][index]

    def place(self, row: int) -> tuple[int, int]:
        """Return the rank of an action and its index in the rank's program."""
        rank = int(self.columns.rank[row])
        return rank, int(row - self.columns.starts[rank])

    def without(self, *names: str) -> PipelineSchedule:
        """Return the schedule without actions of these kinds."""
        rows: list[list[Action]] = []
        for actions in self.actions:
            row: list[Action] = []
            has_begun = False  # whether the group of overlapping actions has a kept one so far
            for action in actions:
                has_begun = has_begun and action.with_previous
                if action.kind not in names:
                    row.append(action if has_begun else action._replace(with_previous=False))
                    has_begun = True
            rows.append(row)
        return self.with_actions(rows)

    def with_actions(self, actions: Sequence[Sequence[Action]]) -> PipelineSchedule:
        """Return the schedule with another table of actions."""
        return replace(self, actions=tuple(tuple(row) for row in actions))

    @cached_property
    def columns(self) -> Columns:
        """All actions as arrays.

        Raises:
            InvalidSchedule: an action has an unregistered kind or an invalid number.
        """
        return make_columns(self)

    @cached_property
    def dependencies(self) -> Dependencies:
        """The dependencies of all actions.

        Raises:
            MissingAction: an action depends on one that is not in the table.
        """
        return find_dependencies(self)


def _chain(num_stages: int) -> tuple[tuple[int, int], ...]:
    return tuple((stage, stage + 1) for stage in range(num_stages - 1))
