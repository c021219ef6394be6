"""The memory use of ranks at every action of a schedule."""

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
    """The allocations and releases of one stash.

    Args:
        stash: name of the stash.
        taken, freed: actions that allocate it and that free it, per micro-batch; keys are equal for the same stage and
            micro-batch.
    """

    stash: str
    taken: KeyedUnits
    freed: KeyedUnits


@dataclass(frozen=True, eq=False)
class MemoryUse:
    """The memory use of ranks, in bytes.

    Args:
        weight_nbytes: weights of each rank's copies of stages.
        during_nbytes: memory of the rank during every action, including weights, as in `PipelineSchedule.columns`.
        after_nbytes: memory of the rank after every action.
        peak_nbytes: peak of each rank.
    """

    weight_nbytes: NDArray[np.float64]
    during_nbytes: NDArray[np.float64]
    after_nbytes: NDArray[np.float64]
    peak_nbytes: NDArray[np.float64]


def holdings(schedule: PipelineSchedule) -> list[Holding]:
    """Return the allocations and releases of every stash."""
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
    """Return the memory use at every action: allocations count from its start, releases from its end."""
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
    """Return the micro-batches of all actions that allocate or free the stashes."""
    columns = schedule.columns
    parts = [keyed_units(schedule, np.zeros(0, np.int64))]
    for kind, of_kind in stashes.items():
        for stash in of_kind:
            units = keyed_units(schedule, columns.rows_of(kind))
            keep = np.ones(len(units.row), np.bool_)
            for other, must_exist in ((stash.only_with, True), (stash.unless, False)):
                if other is not None:
                    keep &= np.isin(units.key, keyed_units(schedule, columns.rows(other)).key) == must_exist
            parts.append(KeyedUnits(units.row[keep], units.micro_batch[keep], units.key[keep]))
    row, micro_batch, key = zip(*parts, strict=True)
    return KeyedUnits(np.concatenate(row), np.concatenate(micro_batch), np.concatenate(key))
