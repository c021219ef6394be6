"""What ranks keep in memory, at every action of a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hocket.pipeline.costs import CostModel, per_stage
from hocket.pipeline.dependencies import KeyedUnits, keyed_units
from hocket.pipeline.kind import Stash, kinds
from hocket.pipeline.schedule import PipelineSchedule


@dataclass(frozen=True, eq=False)
class Holding:
    """What is taken and let go of one stash.

    Args:
        stash: its name.
        taken, freed: micro-batches of actions that take it, and let it go; keys are equal for the same stage of the
            same micro-batch.
    """

    stash: str
    taken: KeyedUnits
    freed: KeyedUnits


@dataclass(frozen=True, eq=False)
class MemoryUse:
    """What ranks hold, in bytes.

    Args:
        weight_nbytes: of every rank: of its copies of stages.
        during_nbytes: while every action runs, weights included, in the order of `PipelineSchedule.columns`.
        after_nbytes: when it is over.
        peak_nbytes: of every rank.
    """

    weight_nbytes: NDArray[np.float64]
    during_nbytes: NDArray[np.float64]
    after_nbytes: NDArray[np.float64]
    peak_nbytes: NDArray[np.float64]


def holdings(schedule: PipelineSchedule) -> list[Holding]:
    """Return what is taken and let go, by stash."""
    columns = schedule.columns
    used = [kinds()[name] for name in columns.kinds]
    stashes = dict.fromkeys(stash.name for kind in used for stash in (*kind.takes, *kind.frees))
    return [
        Holding(
            name,
            _units(schedule, {kind.name: [each for each in kind.takes if each.name == name] for kind in used}),
            _units(schedule, {kind.name: [each for each in kind.frees if each.name == name] for kind in used}),
        )
        for name in stashes
    ]


def memory_use(schedule: PipelineSchedule, costs: CostModel) -> MemoryUse:
    """Return what ranks hold at every action: what it takes counts from its beginning, what it frees until its end."""
    columns = schedule.columns
    num_groups = int(columns.groups[-1]) + 1 if len(columns) else 0
    taken, freed = np.zeros(num_groups), np.zeros(num_groups)
    for holding in holdings(schedule):
        nbytes = costs.stash_nbytes_of(holding.stash, schedule.num_stages)
        for units, into in ((holding.taken, taken), (holding.freed, freed)):
            into += np.bincount(columns.groups[units.row], nbytes[columns.stage[units.row]], num_groups)
    weights = per_stage(costs.weight_nbytes, schedule.num_stages, "weight_nbytes")
    of_rank = np.zeros(schedule.num_ranks)
    for ranks in schedule.placement.ranks:
        np.add.at(of_rank, list(ranks), weights)
    during, after = np.zeros((2, num_groups))
    peak = of_rank.copy()
    bounds = np.append(columns.groups, num_groups)[columns.starts]
    for rank, (first, last) in enumerate(pairwise(bounds.tolist())):
        if first < last:
            kept = np.cumsum(taken[first:last] - freed[first:last])
            during[first:last] = of_rank[rank] + np.concatenate([[0.0], kept[:-1]]) + taken[first:last]
            after[first:last] = of_rank[rank] + kept
            peak[rank] = during[first:last].max()
    return MemoryUse(of_rank, during[columns.groups], after[columns.groups], peak)


def _units(schedule: PipelineSchedule, stashes: dict[str, list[Stash]]) -> KeyedUnits:
    """The micro-batches of all actions that touch a stash."""
    columns = schedule.columns
    parts = [keyed_units(schedule, np.zeros(0, np.int64))]
    for kind, of_kind in stashes.items():
        for stash in of_kind:
            units = keyed_units(schedule, columns.rows_of(kind))
            keep = np.ones(len(units.row), np.bool_)
            for other, wanted in ((stash.only_with, True), (stash.unless, False)):
                if other is not None:
                    keep &= np.isin(units.key, keyed_units(schedule, columns.rows(other)).key) == wanted
            parts.append(KeyedUnits(units.row[keep], units.micro_batch[keep], units.key[keep]))
    row, micro_batch, key = zip(*parts, strict=True)
    return KeyedUnits(np.concatenate(row), np.concatenate(micro_batch), np.concatenate(key))
