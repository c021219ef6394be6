"""Schedule additional work into the idle time of ranks.

Osawa, Li and Hoefler, "PipeFisher: Efficient Training of Large Language Models Using Pipelining and Fisher
Information Matrices", MLSys 2023 (arXiv 2211.14133), section 3.2: each piece of work goes into the first gap that is
long enough and starts after its dependencies; the rest goes into later steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hocket.errors import InvalidArgument
from hocket.pipeline.action import Action
from hocket.pipeline.costs import CostModel
from hocket.pipeline.lowered import action_seconds
from hocket.pipeline.passes.concatenate import concatenate
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.simulation import simulate


@dataclass(frozen=True)
class FillReport:
    """The result of `fill_bubbles`.

    Args:
        num_steps: training steps until all work is done once.
        busy_before, busy_after: share of time in which ranks are busy, without and with the work.
        overrun_s: additional seconds of all steps together.
        num_appended: pieces of work that did not fit into a gap and are at the end.

    Examples:
        >>> report = hk.pipeline.FillReport(2, busy_before=0.73, busy_after=0.95, overrun_s=0.0, num_appended=0)
        >>> f"{report.busy_after - report.busy_before:.0%} more busy, {report.overrun_s:g} s longer"
        '22% more busy, 0 s longer'
    """

    num_steps: int
    busy_before: float
    busy_after: float
    overrun_s: float
    num_appended: int


@dataclass
class _Hole:
    """The unused part of a gap."""

    begin_s: float
    end_s: float


def fill_bubbles(
    schedule: PipelineSchedule,
    works: Sequence[tuple[int, Action]],
    costs: CostModel,
    *,
    margin: float = 0.05,
    most_steps: int = 64,
) -> tuple[PipelineSchedule, FillReport]:
    """Insert work into bubbles; steps are added until all work is done.

    Args:
        schedule: schedule of one step.
        works: (rank, action) pairs, the most urgent first; the kind of an action defines its dependencies; `step` is 0.
        costs: costs of all actions, including the works.
        margin: required slack of a gap, as a share of the work's time, since costs are estimates.
        most_steps: maximum number of steps. Works that do not fit into these steps, or into another whole step, are
            appended at the end, which makes the last step longer.

    Returns:
        The schedule with all works, and a report.

    Raises:
        InvalidArgument: a work takes no time, has an invalid rank or a later step, or an action of the schedule
            depends on it.
        MissingAction: a dependency of a work is neither in the schedule nor among the works.

    Examples:
        >>> need = hk.pipeline.Need(("F",), match=("step", "pipe", "stage", "micro_batch"))
        >>> _ = hk.pipeline.register_kind(hk.pipeline.Kind("STATS", "statistics", needs=(need,), cost="STATS"))
        >>> costs = hk.pipeline.CostModel(seconds={"F": 1.0, "B": 2.0, "STATS": 0.5})
        >>> works = [(rank, hk.pipeline.Action("STATS", rank, 0)) for rank in range(2)]
        >>> filled, report = hk.pipeline.fill_bubbles(hk.pipeline.build("1f1b", 2, 2), works, costs)
        >>> print(*filled.actions[0])
        0F0 0F1 0STATS0 0B0 0B1
        >>> report.overrun_s
        0.0
    """
    if not (0 <= margin < float("inf")) or most_steps < 1:
        raise InvalidArgument(f"margin must be 0 or more and most_steps 1 or more, got {margin} and {most_steps}")
    num_steps = 1
    placed_before = -1  # number of works that fit into one step less
    while True:
        base = concatenate(schedule, num_steps)
        filling = _Filling(base, works, costs, margin)
        filling.run()
        num_placed = len(filling.begin_s)
        if num_placed in (len(works), placed_before) or num_steps >= most_steps:
            break
        placed_before = num_placed
        num_steps += 1
    filled = filling.table()
    before, after = simulate(base, costs), simulate(filled, costs)
    return filled, FillReport(
        num_steps,
        1.0 - before.bubble(),
        1.0 - after.bubble(),
        max(0.0, after.makespan_s - before.makespan_s),
        len(works) - num_placed,
    )


class _Filling:
    """The works, the gaps, and the positions chosen for the works."""

    def __init__(
        self, base: PipelineSchedule, works: Sequence[tuple[int, Action]], costs: CostModel, margin: float
    ) -> None:
        self.base, self.works, self.margin = base, works, margin
        timeline = simulate(base, costs)
        everything = self._append(base, works)
        columns = everything.columns
        # In `everything`, works are at the end of their rank's program, in the order of `works`.
        ends = [list(range(int(columns.starts[rank]) + len(base.actions[rank]), int(columns.starts[rank + 1])))
                for rank in range(base.num_ranks)]  # fmt: skip
        self.rows = [ends[rank].pop(0) for rank, _ in works]
        number_of = {row: number for number, row in enumerate(self.rows)}
        seconds = action_seconds(everything, costs)
        self.seconds = [float(seconds[row]) for row in self.rows]
        without_time = [number for number, seconds in enumerate(self.seconds) if seconds <= 0]
        if without_time:
            raise InvalidArgument(f"work must take time, but costs has none for {works[without_time[0]][1]}")
        end_of = np.zeros(len(columns))
        is_work = np.zeros(len(columns), np.bool_)
        is_work[self.rows] = True
        end_of[~is_work] = timeline.end_s
        self.ready_s = [0.0] * len(works)
        self.after: list[list[int]] = [[] for _ in works]
        dependencies = everything.dependencies
        for after, before in zip(dependencies.after.tolist(), dependencies.before.tolist(), strict=True):
            if after not in number_of:
                if before in number_of:
                    raise InvalidArgument(
                        f"{everything.action(after)} depends on {everything.action(before)}: no action of the schedule "
                        "may depend on work that fills bubbles"
                    )
                continue
            if before in number_of:
                self.after[number_of[after]].append(number_of[before])
            else:
                self.ready_s[number_of[after]] = max(self.ready_s[number_of[after]], float(end_of[before]))
        self.holes: list[list[_Hole]] = [[] for _ in range(base.num_ranks)]
        for gap in timeline.gaps():
            self.holes[gap.rank].append(_Hole(gap.begin_s, gap.end_s))
        # Ends in program order; a background action occupies its rank only until it has started.
        in_background = ~timeline.holds_rank
        self.done_s = [
            np.maximum.accumulate(np.where(in_background, timeline.begin_s, timeline.end_s)[first:last])
            for first, last in pairwise(base.columns.starts.tolist())
        ]
        self.begin_s: dict[int, float] = {}
        self.places: dict[int, int] = {}

    def run(self) -> None:
        """Place works until none fits into a gap."""
        progress = True
        while progress:
            progress = False
            for number, (rank, _) in enumerate(self.works):
                if number not in self.begin_s and all(other in self.begin_s for other in self.after[number]):
                    progress |= self._place(number, rank)

    def _place(self, number: int, rank: int) -> bool:
        ready_s = max(
            [self.ready_s[number], *(self.begin_s[other] + self.seconds[other] for other in self.after[number])]
        )
        seconds = self.seconds[number]
        for position, hole in enumerate(self.holes[rank]):
            begin_s = max(ready_s, hole.begin_s)
            if begin_s + seconds * (1 + self.margin) <= hole.end_s:
                # Insert before the action that waits during this gap, for a message or a gradient sum.
                now = begin_s * (1 + 1e-12)
                self.begin_s[number] = begin_s
                self.places[number] = int(np.searchsorted(self.done_s[rank], now, "right"))
                self.holes[rank][position : position + 1] = [
                    _Hole(hole.begin_s, begin_s),
                    _Hole(begin_s + seconds, hole.end_s),
                ]
                return True
        return False

    def table(self) -> PipelineSchedule:
        """Return the schedule with all works: those placed in gaps, and the others at the end."""
        works_at: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number in self._in_order():
            rank = self.works[number][0]
            works_at[rank, self.places.get(number, len(self.base.actions[rank]))].append(number)
        rows = []
        for rank, actions in enumerate(self.base.actions):
            row: list[Action] = []
            for place in range(len(actions) + 1):
                row += [self.works[number][1] for number in works_at[rank, place]]
                row += actions[place : place + 1]
            rows.append(row)
        return self.base.with_actions(rows)

    def _in_order(self) -> list[int]:
        """Return all works: first those in gaps, ordered by time, then the others, each after its dependencies."""
        order = sorted(self.begin_s, key=lambda number: self.begin_s[number])
        unplaced = [number for number in range(len(self.works)) if number not in self.begin_s]
        while unplaced:
            ready = [number for number in unplaced if not set(self.after[number]) & set(unplaced)]
            if not ready:
                raise InvalidArgument(f"works depend on each other in a cycle with {self.works[unplaced[0]][1]}")
            order += ready
            unplaced = [number for number in unplaced if number not in ready]
        return order

    @staticmethod
    def _append(base: PipelineSchedule, works: Sequence[tuple[int, Action]]) -> PipelineSchedule:
        rows = [list(actions) for actions in base.actions]
        for rank, action in works:
            if not 0 <= rank < len(rows):
                raise InvalidArgument(f"the rank of a work must be from 0 to {len(rows) - 1}, got {rank}")
            if action.step != 0 or action.with_previous:
                raise InvalidArgument(f"work must have step 0 and must not overlap with another action, got {action}")
            rows[rank].append(action)
        return base.with_actions(rows)
