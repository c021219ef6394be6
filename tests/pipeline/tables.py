"""Schedules for tests: all recipes, and random changes of their tables."""

from __future__ import annotations

import random

from hocket.pipeline.action import Action
from hocket.pipeline.registry import recipes
from hocket.pipeline.schedule import PipelineSchedule


def all_schedules(num_ranks: int = 4, num_micro_batches: int = 8) -> list[PipelineSchedule]:
    """Return one schedule of every recipe, and the variants of Chimera."""
    schedules = [each.schedule(num_ranks, num_micro_batches) for each in recipes()]
    chimera = next(each for each in recipes() if each.name == "chimera")
    schedules += [
        chimera.schedule(num_ranks, num_micro_batches, mode=mode)
        for mode in ("doubling", "halving", "list", "zero-bubble")
    ]
    return [*schedules, chimera.schedule(num_ranks, num_micro_batches, num_pairs=2)]


def place(schedule: PipelineSchedule, draw: random.Random) -> tuple[int, int]:
    """Return the rank and index of a random action."""
    rank = draw.choice([rank for rank, actions in enumerate(schedule.actions) if actions])
    return rank, draw.randrange(len(schedule.actions[rank]))


def rows_of(schedule: PipelineSchedule) -> list[list[Action]]:
    return [list(actions) for actions in schedule.actions]


def random_legal(schedule: PipelineSchedule, draw: random.Random) -> PipelineSchedule:
    """Return the same actions in a random order that respects their dependencies."""
    dependencies = schedule.dependencies
    num_before = [0] * len(schedule)
    after: list[list[int]] = [[] for _ in range(len(schedule))]
    for later, earlier in zip(dependencies.after.tolist(), dependencies.before.tolist(), strict=True):
        num_before[later] += 1
        after[earlier].append(later)
    ready = [row for row, number in enumerate(num_before) if number == 0]
    rows: list[list[Action]] = [[] for _ in range(schedule.num_ranks)]
    while ready:
        row = ready.pop(draw.randrange(len(ready)))
        rows[schedule.place(row)[0]].append(schedule.action(row)._replace(with_previous=False))
        for later in after[row]:
            num_before[later] -= 1
            if num_before[later] == 0:
                ready.append(later)
    return schedule.with_actions(rows)
