"""Passes that transform schedules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hocket.collectives.schedule import COLUMNS, Schedule, from_columns, renumbered
from hocket.errors import InvalidSchedule

_REVERSED = {"broadcast": "reduce", "all_gather": "reduce_scatter"}


def reverse(schedule: Schedule) -> Schedule:
    """Turn a broadcast into a reduce, or an all_gather into a reduce_scatter.

    The transfers of a block from its owner to all ranks form a tree. Reversed, from the last round to the first, they
    bring the part of every rank to the owner exactly once.
    """
    if schedule.collective not in _REVERSED:
        raise InvalidSchedule(f"only {' and '.join(_REVERSED)} can be reversed, got {schedule.collective}")
    return renumbered(
        schedule,
        collective=_REVERSED[schedule.collective],
        rounds=schedule.num_rounds - 1 - schedule.rounds,
        sources=schedule.destinations,
        destinations=schedule.sources,
        source_slots=schedule.destination_slots,
        destination_slots=schedule.source_slots,
        reduces=np.ones(len(schedule), bool),
    )


def sequence(collective: str, *schedules: Schedule) -> Schedule:
    """Concatenate schedules on the same blocks."""
    first = schedules[0]
    for each in schedules[1:]:
        if (each.num_ranks, each.num_blocks) != (first.num_ranks, first.num_blocks):
            raise InvalidSchedule(
                f"schedules in a sequence must have the same ranks and blocks, got {first.num_ranks}, "
                f"{first.num_blocks} and {each.num_ranks}, {each.num_blocks}"
            )
    columns = {name: np.concatenate([getattr(each, name) for each in schedules]) for name in COLUMNS}
    begins = np.cumsum([0, *(each.num_rounds for each in schedules[:-1])])
    columns["rounds"] = np.concatenate([each.rounds + begin for each, begin in zip(schedules, begins, strict=True)])
    return from_columns(
        collective,
        first.num_ranks,
        first.num_blocks,
        max(each.num_slots for each in schedules),
        columns,
        ports=max(each.ports for each in schedules),
    )


def segmented(schedule: Schedule, num_segments: int) -> Schedule:
    """Split every block into segments that are sent in sequence."""
    if num_segments == 1:
        return schedule
    segments = np.arange(num_segments)

    def split(column: np.ndarray) -> np.ndarray:
        return (column[:, None] * num_segments + segments).ravel()

    same = {name: np.repeat(getattr(schedule, name), num_segments) for name in ("sources", "destinations", "reduces")}
    return renumbered(
        schedule,
        num_blocks=schedule.num_blocks * num_segments,
        num_slots=schedule.num_slots * num_segments,
        **{name: split(getattr(schedule, name)) for name in ("rounds", "blocks", "source_slots", "destination_slots")},
        **same,
    )


def overlapped(collective: str, phases: Sequence[Schedule], levels: Sequence[int], num_segments: int) -> Schedule:
    """Run phases in sequence on every segment of the blocks, with phases of different segments overlapped.

    Args:
        collective: collective of the result.
        phases: schedules with the same ranks and blocks.
        levels: level of every phase; phases of the same level do not overlap.
        num_segments: segments of every block; one segment gives a `sequence`.
    """
    if num_segments == 1:
        return sequence(collective, *phases)
    begins, lengths = [], dict.fromkeys(levels, 0)
    for phase, level in zip(phases, levels, strict=True):
        begins.append(lengths[level])
        lengths[level] += phase.num_rounds
    period = max(lengths.values())
    segmented_phases = [segmented(phase, num_segments) for phase in phases]
    whole = sequence(collective, *segmented_phases)
    rounds = [
        (number + phase.blocks % num_segments) * period + begin + phase.rounds // num_segments
        for number, (phase, begin) in enumerate(zip(segmented_phases, begins, strict=True))
    ]
    # The transfers of a sequence stay in the order of its parts.
    return renumbered(whole, rounds=np.concatenate(rounds), ports=len(lengths) * whole.ports)


def rotated(schedule: Schedule, root: int) -> Schedule:
    """Return the schedule with ranks renumbered for a root, which is rank 0 of the given schedule."""
    if root == 0:
        return schedule
    ranks = np.array([schedule.rank_at(place, root) for place in range(schedule.num_ranks)])
    return renumbered(schedule, sources=ranks[schedule.sources], destinations=ranks[schedule.destinations])


def without_repeats(schedule: Schedule) -> Schedule:
    """Drop transfers of blocks that their destination already has; only for schedules without reductions."""
    has = np.zeros((schedule.num_ranks, schedule.num_blocks), bool)
    if schedule.collective == "broadcast":
        has[0] = True
    else:
        parts = schedule.num_blocks // schedule.num_ranks
        has[np.arange(schedule.num_blocks) // parts, np.arange(schedule.num_blocks)] = True
    keep = np.zeros(len(schedule), bool)
    offsets = schedule.round_offsets
    for number in range(schedule.num_rounds):
        rows = slice(offsets[number], offsets[number + 1])
        places = schedule.destinations[rows], schedule.blocks[rows]
        keep[rows] = ~has[places]
        has[places] = True
    return renumbered(schedule, **{name: getattr(schedule, name)[keep] for name in COLUMNS})
