"""Puts further work where ranks would be idle.

Osawa, Li and Hoefler, "PipeFisher: Efficient Training of Large Language Models Using Pipelining and Fisher
Information Matrices", MLSys 2023 (arXiv 2211.14133), section 3.2: work goes into the first gap that is long enough and
begins after all that the work needs; what is left goes into further steps.
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
    """What filling did.

    Args:
        num_steps: that it takes until all work is done, once.
        busy_before, busy_after: the part of the time in which ranks work, of the steps without and with it.
        overrun_s: by how much all steps together last longer.
        num_appended: works that found no gap, and stand at the end.
    """

    num_steps: int
    busy_before: float
    busy_after: float
    overrun_s: float
    num_appended: int


@dataclass
class _Hole:
    """What is left of a gap: from when to when."""

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
    """Put work into bubbles; steps are added until all of it is done.

    Args:
        schedule: of one step.
        works: (rank, action), the most urgent first; their kinds say what they wait for, and `step` is 0.
        costs: of all actions, with those of the works.
        margin: by which a gap has to be longer than the work, for costs are never exact.
        most_steps: after which what is left goes to the end, where it makes the steps longer. So does what finds no
            gap in a whole further step.

    Raises:
        InvalidArgument: a work costs nothing, has a rank that there is not, is of a later step, or something in the
            table waits for it.
        MissingAction: what a work waits for is neither in the table nor among the works.
    """
    if not (0 <= margin < float("inf")) or most_steps < 1:
        raise InvalidArgument(f"margin is 0 or more, and most_steps 1 or more, not {margin} and {most_steps}")
    num_steps = 1
    placed: list[int] = []
    while True:
        base = concatenate(schedule, num_steps)
        filling = _Filling(base, works, costs, margin)
        filling.run()
        done = len(filling.begin_s)
        if done == len(works) or num_steps >= most_steps or (placed and done == placed[-1]):
            break
        placed.append(done)
        num_steps += 1
    filled = filling.table()
    before, after = simulate(base, costs), simulate(filled, costs)
    return filled, FillReport(
        num_steps,
        1.0 - before.bubble(),
        1.0 - after.bubble(),
        max(0.0, after.makespan_s - before.makespan_s),
        len(works) - done,
    )


class _Filling:
    """Works, gaps, and which work went where."""

    def __init__(
        self, base: PipelineSchedule, works: Sequence[tuple[int, Action]], costs: CostModel, margin: float
    ) -> None:
        self.base, self.works, self.margin = base, works, margin
        timeline = simulate(base, costs)
        everything = self._append(base, works)
        columns = everything.columns
        # Works stand at the end of their rank's program there, in the order of `works`.
        ends = [list(range(int(columns.starts[rank]) + len(base.actions[rank]), int(columns.starts[rank + 1])))
                for rank in range(base.num_ranks)]  # fmt: skip
        self.rows = [ends[rank].pop(0) for rank, _ in works]
        number_of = {row: number for number, row in enumerate(self.rows)}
        seconds = action_seconds(everything, costs)
        self.seconds = [float(seconds[row]) for row in self.rows]
        free = [number for number, each in enumerate(self.seconds) if each <= 0]
        if free:
            raise InvalidArgument(f"work that takes no time fills nothing: {works[free[0]][1]}")
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
                        f"{everything.action(after)} waits for {everything.action(before)}: what fills bubbles is work "
                        "that nothing in the table waits for"
                    )
                continue
            if before in number_of:
                self.after[number_of[after]].append(number_of[before])
            else:
                self.ready_s[number_of[after]] = max(self.ready_s[number_of[after]], float(end_of[before]))
        self.holes: list[list[_Hole]] = [[] for _ in range(base.num_ranks)]
        for gap in timeline.gaps():
            self.holes[gap.rank].append(_Hole(gap.begin_s, gap.end_s))
        # Ends in program order; what goes on aside is over for its rank when it has begun.
        aside = ~timeline.holds_rank
        self.done_s = [
            np.maximum.accumulate(np.where(aside, timeline.begin_s, timeline.end_s)[first:last])
            for first, last in pairwise(base.columns.starts.tolist())
        ]
        self.begin_s: dict[int, float] = {}
        self.places: dict[int, int] = {}

    def run(self) -> None:
        """Place works until none finds a gap any more."""
        again = True
        while again:
            again = False
            for number, (rank, _) in enumerate(self.works):
                if number not in self.begin_s and all(other in self.begin_s for other in self.after[number]):
                    again |= self._place(number, rank)

    def _place(self, number: int, rank: int) -> bool:
        ready_s = max(
            [self.ready_s[number], *(self.begin_s[other] + self.seconds[other] for other in self.after[number])]
        )
        seconds = self.seconds[number]
        for position, hole in enumerate(self.holes[rank]):
            begin_s = max(ready_s, hole.begin_s)
            if begin_s + seconds * (1 + self.margin) <= hole.end_s:
                # Before what the rank waits for meanwhile: a message, or a sum.
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
        """The schedule with all works: where they fit, and those that did not at the end."""
        there: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number in self._in_order():
            rank = self.works[number][0]
            there[rank, self.places.get(number, len(self.base.actions[rank]))].append(number)
        rows = []
        for rank, actions in enumerate(self.base.actions):
            row: list[Action] = []
            for place in range(len(actions) + 1):
                row += [self.works[number][1] for number in there[rank, place]]
                row += actions[place : place + 1]
            rows.append(row)
        return self.base.with_actions(rows)

    def _in_order(self) -> list[int]:
        """All works: those that found a gap by time, and then the others, each after what it waits for."""
        order = sorted(self.begin_s, key=lambda number: self.begin_s[number])
        left = [number for number in range(len(self.works)) if number not in self.begin_s]
        while left:
            free = [number for number in left if not set(self.after[number]) & set(left)]
            if not free:
                raise InvalidArgument(f"works wait for each other: {self.works[left[0]][1]} is one of them")
            order += free
            left = [number for number in left if number not in free]
        return order

    @staticmethod
    def _append(base: PipelineSchedule, works: Sequence[tuple[int, Action]]) -> PipelineSchedule:
        rows = [list(actions) for actions in base.actions]
        for rank, action in works:
            if not 0 <= rank < len(rows):
                raise InvalidArgument(f"there are ranks 0 to {len(rows) - 1}, not {rank}")
            if action.step != 0 or action.with_previous:
                raise InvalidArgument(f"work is for step 0, and overlaps with nothing: {action}")
            rows[rank].append(action)
        return base.with_actions(rows)
