"""All actions of a schedule as arrays, one per field, with valid kinds and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidSchedule
from hocket.pipeline.action import NONE, Action
from hocket.pipeline.kind import kinds
from hocket.pipeline.table import ActionTable
from hocket.suggestions import unknown

_INTEGERS = (int, np.int32, np.int64)


@dataclass(frozen=True, eq=False)
class Columns:
    """All actions of a schedule, one array per field, ordered by rank and by the program of each rank.

    Args:
        rank: rank of each action.
        kind: index into `kinds`.
        stage, micro_batch, width, pipe, step, peer, with_previous: as in `Action`.
        kinds: names of the kinds in use.
        starts: index of each rank's first action, and the total number of actions.
        groups: number of each action's group; actions that overlap (`with_previous`) share a group.
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

    def counted_as(self, *names: str) -> list[str]:
        """Return the kinds of the table that are among `names` or count as one of them."""
        return [name for name in self.kinds if name in names or kinds()[name].counts_as in names]

    def rows_of(self, name: str) -> NDArray[np.int64]:
        """Return the row numbers of all actions of one kind."""
        return self._by_kind[name]

    def rows(self, *names: str) -> NDArray[np.int64]:
        """Return the row numbers of all actions whose kind is among `names` or counts as one of them."""
        rows = [self._by_kind[name] for name in self.counted_as(*names)]
        if len(rows) == 1:
            return rows[0]
        return np.sort(np.concatenate(rows)) if rows else np.zeros(0, np.int64)

    @cached_property
    def _by_kind(self) -> dict[str, NDArray[np.int64]]:
        order = np.argsort(self.kind, kind="stable")
        bounds = np.searchsorted(self.kind[order], np.arange(len(self.kinds) + 1))
        return {name: order[bounds[code] : bounds[code + 1]] for code, name in enumerate(self.kinds)}


def make_columns(schedule: ActionTable) -> Columns:
    """Return the columns of a schedule.

    Raises:
        InvalidSchedule: an action has an unregistered kind or an invalid number.
    """
    flat = [action for actions in schedule.actions for action in actions]
    lengths = [len(actions) for actions in schedule.actions]
    fields = list(zip(*flat, strict=True)) or [()] * len(Action._fields)
    used = tuple(dict.fromkeys(fields[0]))
    code = {name: number for number, name in enumerate(used)}
    kind = np.fromiter((code[name] for name in fields[0]), np.int32, len(flat))
    for name, values in zip(Action._fields[1:7], fields[1:7], strict=True):
        wrong = next((value for value in values if type(value) not in _INTEGERS), None)
        if wrong is not None:
            raise InvalidSchedule(f"{name} of an action must be an integer, got {wrong!r}")
    stage, micro_batch, width, pipe, step, peer = (np.array(each, np.int32) for each in fields[1:7])
    with_previous = np.array(fields[7], np.bool_)
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    rank = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    groups = (np.cumsum(~with_previous) - 1).astype(np.int32)
    columns = Columns(rank, kind, stage, micro_batch, width, pipe, step, peer, with_previous, used, starts, groups)
    _check(schedule, columns)
    return columns


def _check(schedule: ActionTable, columns: Columns) -> None:
    """Raise InvalidSchedule if a kind is unknown or a number is out of range."""
    known = kinds()
    for number, name in enumerate(columns.kinds):
        if name not in known:
            row = int(np.flatnonzero(columns.kind == number)[0])
            _refuse(schedule, columns, row, unknown("kind", name, sorted(known)))
    per_micro_batch = np.array([known[name].scope == "micro_batch" for name in columns.kinds], np.bool_)
    is_message = np.array([known[name].message is not None for name in columns.kinds], np.bool_)
    has_micro_batch, has_peer = per_micro_batch[columns.kind], is_message[columns.kind]
    cannot_overlap = np.array(
        [known[name].message is not None or known[name].resource != "rank" for name in columns.kinds], np.bool_
    )
    overlaps = np.bincount(columns.groups)[columns.groups] > 1 if len(columns) else np.zeros(0, np.bool_)
    last = columns.micro_batch + columns.width
    first_of_rank = np.zeros(len(columns), np.bool_)
    first_of_rank[columns.starts[:-1][columns.starts[:-1] < columns.starts[1:]]] = True
    num_stages, num_micro_batches = schedule.num_stages, schedule.num_micro_batches
    for wrong, reason in (
        (~_within(columns.stage, num_stages), f"stage is out of range: there are {num_stages} stages"),
        (~_within(columns.pipe, schedule.num_pipes), f"pipe is out of range: there are {schedule.num_pipes} pipes"),
        (~_within(columns.step, schedule.num_steps), f"step is out of range: there are {schedule.num_steps} steps"),
        (columns.width < 1, "width must be 1 or more"),
        (
            has_micro_batch & ~(_within(columns.micro_batch, num_micro_batches) & (last <= num_micro_batches)),
            f"micro-batch is out of range: there are {num_micro_batches} micro-batches",
        ),
        (~has_micro_batch & (columns.micro_batch != NONE), "its kind acts on a stage, not on micro-batches"),
        (has_peer & ~_within(columns.peer, num_stages), f"a message needs a peer stage below {num_stages}"),
        (~has_peer & (columns.peer != NONE), "only messages have a peer stage"),
        (~has_micro_batch & (columns.width != 1), "its kind acts on a stage, not on micro-batches"),
        (
            cannot_overlap[columns.kind] & overlaps,
            "only computation of the rank can be marked to overlap; messages overlap with it anyway",
        ),
        (columns.with_previous & first_of_rank, "it has no previous action to overlap with"),
    ):
        if wrong.any():
            _refuse(schedule, columns, int(np.flatnonzero(wrong)[0]), reason)


def _refuse(schedule: ActionTable, columns: Columns, row: int, reason: str) -> None:
    rank = int(columns.rank[row])
    index = int(row - columns.starts[rank])
    raise InvalidSchedule(f"rank {rank}, action {index}, {schedule.actions[rank][index]}: {reason}")


def _within(values: NDArray[np.int32], end: int) -> NDArray[np.bool_]:
    return (values >= 0) & (values < end)
