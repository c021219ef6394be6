"""A pipeline schedule: for every rank, the actions of a training step in their order."""

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
    """A table of actions, whose order is the program; when they happen follows from what they cost: see `simulate`.

    Nothing is checked beyond what is needed to understand the table: see `validate`.

    Args:
        name: of the schedule that it was made by.
        placement: which rank holds which stage.
        num_micro_batches: of one step, over all pipes.
        actions: of every rank, in its order.
        edges: which stage (first) gives its outputs to which; a chain of all stages if not given.
        num_steps: of training, whose actions stand in the table.
        parameters: that the schedule was made with.

    Raises:
        InvalidSchedule: an action has a kind that nobody registered, or a number that cannot be.
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
                    f"an edge goes from a stage to a later one, of {num_stages}; ({first}, {second}) does not"
                )
        for name in ("num_micro_batches", "num_steps"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InvalidArgument(f"{name} is 1 or more, not {value!r}")
        if self.num_micro_batches * self.num_steps * num_stages > _MOST_PASSES:
            raise InvalidArgument(
                f"{self.num_micro_batches} micro-batches of {num_stages} stages and {self.num_steps} steps are too "
                f"many: there may be {_MOST_PASSES} passes"
            )
        if len(self.actions) != self.num_ranks:
            raise InvalidSchedule(f"the placement has {self.num_ranks} ranks, the table {len(self.actions)}")

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
        """Whether every stage takes what the one before it gives, and nothing else."""
        return self.edges == _chain(self.num_stages)

    def __len__(self) -> int:
        """Actions in the table."""
        return len(self.columns)

    def __eq__(self, other: object) -> bool:
        """Whether both do the same; names and parameters do not count."""
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
        """Return an action by its number in `columns`."""
        rank, index = self.place(row)
        return self.actions[rank][index]

    def place(self, row: int) -> tuple[int, int]:
        """Return the rank of an action, and its place in the rank's order."""
        rank = int(self.columns.rank[row])
        return rank, int(row - self.columns.starts[rank])

    def without(self, *names: str) -> PipelineSchedule:
        """Return the schedule without actions of these kinds."""
        rows: list[list[Action]] = []
        for actions in self.actions:
            row: list[Action] = []
            has_begun = False  # whether something stays of what the action overlaps with
            for action in actions:
                has_begun = has_begun and action.with_previous
                if action.kind not in names:
                    row.append(action if has_begun else action._replace(with_previous=False))
                    has_begun = True
            rows.append(row)
        return self.with_actions(rows)

    def with_actions(self, actions: Sequence[Sequence[Action]]) -> PipelineSchedule:
        """Return the schedule with another table."""
        return replace(self, actions=tuple(tuple(row) for row in actions))

    @cached_property
    def columns(self) -> Columns:
        """All actions as arrays.

        Raises:
            InvalidSchedule: an action has a kind that nobody registered, or a number that cannot be.
        """
        return make_columns(self)

    @cached_property
    def dependencies(self) -> Dependencies:
        """What every action waits for.

        Raises:
            MissingAction: what an action waits for is not in the table.
        """
        return find_dependencies(self)


def _chain(num_stages: int) -> tuple[tuple[int, int], ...]:
    return tuple((stage, stage + 1) for stage in range(num_stages - 1))
