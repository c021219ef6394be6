"""A pipeline schedule: for every rank, the actions of a training step in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidArgument, InvalidSchedule
from hocket.pipeline.action import NONE, Action
from hocket.pipeline.dependencies import Dependencies, find_dependencies
from hocket.pipeline.kind import kinds
from hocket.pipeline.placement import Placement

_MOST_PASSES = 1 << 28
_INTEGERS = (int, np.int32, np.int64)


@dataclass(frozen=True, eq=False)
class Columns:
    """All actions of a schedule, rank after rank, each rank's in their order; one array a field.

    Args:
        rank: that does it.
        kind: number in `kinds`.
        stage, micro_batch, width, pipe, step, peer, with_previous: as in `Action`.
        kinds: names.
        starts: where each rank's actions begin; one more entry for where the last rank's end.
        groups: of every action, the number of the group that overlaps: its own, but for those `with_previous`.
    """

    rank: NDArray[np.int32]
    kind: NDArray[np.int32]
    stage: NDArray[np.int32]
    micro_batch: NDArray[np.int32]
    width: NDArray[np.int32]
    pipe: NDArray[np.int32]
    step: NDArray[np.int32]
    peer: NDArray[np.int32]
    with_previous: NDArray[np.bool_]
    kinds: tuple[str, ...]
    starts: NDArray[np.int64]
    groups: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.rank)

    def rows(self, *names: str) -> NDArray[np.int64]:
        """Return the numbers of all actions of these kinds."""
        found = [self._by_kind[name] for name in names if name in self._by_kind]
        if len(found) == 1:
            return found[0]
        return np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)

    @cached_property
    def _by_kind(self) -> dict[str, NDArray[np.int64]]:
        order = np.argsort(self.kind, kind="stable")
        bounds = np.searchsorted(self.kind[order], np.arange(len(self.kinds) + 1))
        return {name: order[bounds[code] : bounds[code + 1]] for code, name in enumerate(self.kinds)}


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
        """All actions as arrays."""
        flat = [action for actions in self.actions for action in actions]
        lengths = [len(actions) for actions in self.actions]
        fields = list(zip(*flat, strict=True)) or [()] * len(Action._fields)
        used = tuple(dict.fromkeys(fields[0]))
        code = {name: number for number, name in enumerate(used)}
        kind = np.fromiter((code[name] for name in fields[0]), np.int32, len(flat))
        for name, values in zip(Action._fields[1:7], fields[1:7], strict=True):
            wrong = next((value for value in values if type(value) not in _INTEGERS), None)
            if wrong is not None:
                raise InvalidSchedule(f"{name} of an action is a whole number, not {wrong!r}")
        stage, micro_batch, width, pipe, step, peer = (np.array(each, np.int32) for each in fields[1:7])
        with_previous = np.array(fields[7], np.bool_)
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        rank = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        groups = (np.cumsum(~with_previous) - 1).astype(np.int32)
        columns = Columns(rank, kind, stage, micro_batch, width, pipe, step, peer, with_previous, used, starts, groups)
        self._check(columns)
        return columns

    @cached_property
    def dependencies(self) -> Dependencies:
        """What every action waits for.

        Raises:
            MissingAction: what an action waits for is not in the table.
        """
        return find_dependencies(self)

    def _check(self, columns: Columns) -> None:
        """Raise InvalidSchedule where a number or a kind says nothing."""
        known = kinds()
        for number, name in enumerate(columns.kinds):
            if name not in known:
                row = int(np.flatnonzero(columns.kind == number)[0])
                self._refuse(columns, row, f"there is no kind {name!r}; there are {', '.join(sorted(known))}")
        per_micro_batch = np.array([known[name].scope == "micro_batch" for name in columns.kinds], np.bool_)
        is_message = np.array([known[name].message is not None for name in columns.kinds], np.bool_)
        has, sends = per_micro_batch[columns.kind], is_message[columns.kind]
        alone = np.array(
            [known[name].message is not None or known[name].resource != "rank" for name in columns.kinds], np.bool_
        )
        overlaps = np.bincount(columns.groups)[columns.groups] > 1 if len(columns) else np.zeros(0, np.bool_)
        last = columns.micro_batch + columns.width
        first_of_rank = np.zeros(len(columns), np.bool_)
        first_of_rank[columns.starts[:-1][columns.starts[:-1] < columns.starts[1:]]] = True
        num_stages, num_micro_batches = self.num_stages, self.num_micro_batches
        for wrong, words in (
            (~_within(columns.stage, num_stages), f"there are {num_stages} stages"),
            (~_within(columns.pipe, self.num_pipes), f"there are {self.num_pipes} pipes"),
            (~_within(columns.step, self.num_steps), f"there are {self.num_steps} steps"),
            (columns.width < 1, "it is for no micro-batch"),
            (
                has & ~(_within(columns.micro_batch, num_micro_batches) & (last <= num_micro_batches)),
                f"there are {num_micro_batches} micro-batches",
            ),
            (~has & (columns.micro_batch != NONE), "its kind concerns a stage, not micro-batches"),
            (sends & ~_within(columns.peer, num_stages), f"a message names a stage at its other end, of {num_stages}"),
            (~sends & (columns.peer != NONE), "only messages have another end"),
            (~has & (columns.width != 1), "its kind concerns a stage, not micro-batches"),
            (alone[columns.kind] & overlaps, "only work of the rank itself overlaps; messages go beside it anyway"),
            (columns.with_previous & first_of_rank, "there is no action before it to overlap with"),
        ):
            if wrong.any():
                self._refuse(columns, int(np.flatnonzero(wrong)[0]), words)

    def _refuse(self, columns: Columns, row: int, words: str) -> None:
        rank = int(columns.rank[row])
        index = int(row - columns.starts[rank])
        raise InvalidSchedule(f"rank {rank}, action {index}, {self.actions[rank][index]}: {words}")


def _chain(num_stages: int) -> tuple[tuple[int, int], ...]:
    return tuple((stage, stage + 1) for stage in range(num_stages - 1))


def _within(values: NDArray[np.int32], end: int) -> NDArray[np.bool_]:
    return (values >= 0) & (values < end)
