"""The dependencies of all actions of a schedule, derived from the needs of their kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hocket.errors import MissingAction
from hocket.pipeline.columns import Columns
from hocket.pipeline.kind import SAME, Field, Need, kinds
from hocket.pipeline.table import ActionTable

Rows: TypeAlias = NDArray[np.int64]

CARRIES = (None, "activation", "gradient", "message", "sum")


class TableInColumns(ActionTable, Protocol):
    """A table of actions with columns, such as a `PipelineSchedule`."""

    @property
    def columns(self) -> Columns: ...
    def place(self, row: int) -> tuple[int, int]:
        """Return the rank of an action and its index in the rank's program."""


@dataclass(frozen=True, eq=False)
class Dependencies:
    """Pairs of dependent actions, by their row numbers in `PipelineSchedule.columns`.

    Args:
        after, before: `after[i]` depends on `before[i]`.
        carries: index into `CARRIES` of the data transferred if the two actions are on different ranks.
        units: number of micro-batches of each dependency.
    """

    after: Rows
    before: Rows
    carries: NDArray[np.int8]
    units: NDArray[np.int32]


class Units(NamedTuple):
    """Actions, repeated once for each of their micro-batches.

    Args:
        row: row number of the action.
        micro_batch: one of its micro-batches; -1 for kinds that act on a stage.
    """

    row: Rows
    micro_batch: NDArray[np.int32]


def units_of(columns: Columns, rows: Rows) -> Units:
    """Return actions, repeated once for each of their micro-batches."""
    counts = columns.width[rows]
    if (counts == 1).all():
        return Units(rows, columns.micro_batch[rows])
    row = np.repeat(rows, counts)
    offsets = _count_up(counts)
    return Units(row, (columns.micro_batch[row] + offsets).astype(np.int32))


class Keys:
    """Numbers for actions that are equal if all chosen fields are equal."""

    def __init__(self, schedule: TableInColumns, match: tuple[Field, ...]) -> None:
        sizes = {
            "step": schedule.num_steps,
            "pipe": schedule.num_pipes,
            "stage": schedule.num_stages,
            "micro_batch": schedule.num_micro_batches + 1,
            "peer": schedule.num_stages + 1,
        }
        self._weights: dict[str, int] = {}
        weight = 1
        for name in match:
            self._weights[name] = weight
            weight *= sizes[name]

    def of(self, **fields: NDArray[Any]) -> NDArray[np.int64]:
        """Return a number for each action, by its fields."""
        total = np.zeros(len(next(iter(fields.values()))), np.int64)
        for name, weight in self._weights.items():
            total += fields[name].astype(np.int64) * weight
        return total


class KeyedUnits(NamedTuple):
    """Actions, repeated once for each of their micro-batches, with a key for some of their fields.

    Args:
        row, micro_batch: as in `Units`.
        key: a number, equal for equal fields.
    """

    row: Rows
    micro_batch: NDArray[np.int32]
    key: NDArray[np.int64]


def keyed_units(schedule: TableInColumns, rows: Rows, match: tuple[Field, ...] = SAME) -> KeyedUnits:
    """Return actions, repeated once for each of their micro-batches, with keys for the fields `match`."""
    columns = schedule.columns
    row, micro_batch = units_of(columns, rows)
    key = Keys(schedule, match).of(
        step=columns.step[row],
        pipe=columns.pipe[row],
        stage=columns.stage[row],
        micro_batch=micro_batch + 1,
        peer=columns.peer[row] + 1,
    )
    return KeyedUnits(row, micro_batch, key)


def first_repeated(key: NDArray[np.int64]) -> tuple[int, int] | None:
    """Return the first two indices of a key that occurs twice, or None if all keys are different."""
    order = np.argsort(key, kind="stable")
    repeated = np.flatnonzero(key[order][1:] == key[order][:-1])
    return (int(order[repeated[0]]), int(order[repeated[0] + 1])) if repeated.size else None


def find_dependencies(schedule: TableInColumns) -> Dependencies:
    """Find the dependencies of all actions.

    Raises:
        MissingAction: an action depends on one that is not in the table.
    """
    columns = schedule.columns
    finder = _DependencyFinder(schedule)
    parts = [
        finder.find(name, need)
        for name in columns.kinds
        for need in kinds()[name].needs
        if need.required or columns.rows(*need.kinds).size
    ]
    if not parts:
        empty = np.zeros(0, np.int64)
        return Dependencies(empty, empty, empty.astype(np.int8), empty.astype(np.int32))
    after, before, carries = (np.concatenate(each) for each in zip(*parts, strict=True))
    # Two actions with several micro-batches in common are paired once per micro-batch: merge and count these pairs.
    pairs, units = (
        np.unique(np.stack([after, before, carries]), axis=1, return_counts=True)
        if _is_wide(columns)
        else (np.stack([after, before, carries]), np.ones(len(after), np.int64))
    )
    return Dependencies(pairs[0], pairs[1], pairs[2].astype(np.int8), units.astype(np.int32))


def _is_wide(columns: Columns) -> bool:
    return bool((columns.width > 1).any())


class _DependencyFinder:
    def __init__(self, schedule: TableInColumns) -> None:
        self._schedule = schedule
        edges = np.array(schedule.edges, np.int64).reshape(-1, 2)
        self._neighbours = {
            "inputs": _Neighbours(edges[:, 1], edges[:, 0], schedule.num_stages),
            "outputs": _Neighbours(edges[:, 0], edges[:, 1], schedule.num_stages),
        }

    def find(self, name: str, need: Need) -> tuple[Rows, Rows, Rows]:
        """Return all pairs of an action of the kind and an action that it depends on by this need."""
        columns = self._schedule.columns
        row, micro_batch = units_of(columns, columns.rows_of(name))
        stage, peer = columns.stage[row], columns.peer[row]
        if need.stages == "peer":
            stage, peer = peer, stage
        elif need.stages != "same":
            which, stage = self._neighbours[need.stages].of(stage)
            row, micro_batch, peer = row[which], micro_batch[which], peer[which]
        step = columns.step[row] - need.steps_before
        exists = step >= 0  # the first step has no earlier one
        row, micro_batch, stage = row[exists], micro_batch[exists], stage[exists]
        needed_keys = Keys(self._schedule, need.match).of(
            step=step[exists],
            pipe=columns.pipe[row],
            stage=stage,
            micro_batch=micro_batch + 1,
            peer=peer[exists] + 1,
        )
        targets, target_keys = self._targets(need)
        first = np.searchsorted(target_keys, needed_keys, "left")
        counts = np.searchsorted(target_keys, needed_keys, "right") - first
        if need.required and not counts.all():
            self._refuse(int(row[counts == 0][0]), need, int(stage[counts == 0][0]), int(micro_batch[counts == 0][0]))
        after = np.repeat(row, counts)
        before = targets[np.repeat(first, counts) + _count_up(counts)]
        return after, before, np.full(len(after), CARRIES.index(need.carries))

    def _targets(self, need: Need) -> tuple[Rows, NDArray[np.int64]]:
        row, _, key = keyed_units(self._schedule, self._schedule.columns.rows(*need.kinds), need.match)
        order = np.argsort(key, kind="stable")
        return row[order], key[order]

    def _refuse(self, row: int, need: Need, stage: int, micro_batch: int) -> None:
        rank, index = self._schedule.place(row)
        number = micro_batch if micro_batch >= 0 else ""
        needed = " or ".join(f"{stage}{kind}{number}" for kind in need.kinds)
        raise MissingAction(
            f"rank {rank}, action {index}, {self._schedule.actions[rank][index]}: it depends on {needed}, which is not "
            "in the table"
        )


class _Neighbours:
    """The neighbours of every stage along edges in one direction."""

    def __init__(self, stages: NDArray[np.int64], others: NDArray[np.int64], num_stages: int) -> None:
        order = np.argsort(stages, kind="stable")
        self._others = others[order]
        self._starts = np.searchsorted(stages[order], np.arange(num_stages + 1))

    def of(self, stage: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return one pair for each neighbour of each given stage: the index of the stage, and the neighbour."""
        first = self._starts[stage]
        counts = self._starts[stage + 1] - first
        which = np.repeat(np.arange(len(stage)), counts)
        return which, self._others[first[which] + _count_up(counts)].astype(np.int32)


def _count_up(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return 0, 1, ..., count - 1 for each of the counts, concatenated."""
    numbers: NDArray[np.int64] = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return numbers
