"""Begin and end of every action of a schedule, simulated or measured, and statistics of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidArgument
from hocket.pipeline.buffering import TAGGED, Buffering
from hocket.pipeline.costs import CostModel
from hocket.pipeline.kind import kinds
from hocket.pipeline.lowered import MessageColumns, lower_to_tasks
from hocket.pipeline.memory import MemoryUse, memory_use
from hocket.pipeline.schedule import PipelineSchedule

BubbleKind = Literal["sync", "span"]


class Gap(NamedTuple):
    """A period in which a rank is idle.

    Args:
        rank: idle rank.
        begin_s, end_s: begin and end of the period.
        place: index of the next action of the rank; the number of its actions after the last one.
    """

    rank: int
    begin_s: float
    end_s: float
    place: int


class EdgeTraffic(NamedTuple):
    """The traffic along an edge between two stages, in one direction.

    Args:
        from_stage, to_stage, from_rank, to_rank: ends of the edge.
        num_messages, nbytes: number of messages and their total size.
    """

    from_stage: int
    to_stage: int
    from_rank: int
    to_rank: int
    num_messages: int
    nbytes: float


@dataclass(frozen=True, eq=False)
class PipelineTimeline:
    """Begin and end of every action and message of a schedule.

    Args:
        schedule: schedule that ran.
        begin_s, end_s: begin and end of every action, in the order of `PipelineSchedule.columns`.
        messages: messages between ranks.
        message_begin_s, message_end_s: begin and end of every message.
        costs: costs of the simulation, or to compare a measurement with.
        source: "simulated" or "measured".
        buffering: buffering of messages.
        task_end_s: end of every task of the simulation; None if measured.

    Examples:
        >>> timeline = hk.pipeline.simulate(hk.pipeline.build("1f1b", 2, 4))
        >>> timeline.makespan_s, round(timeline.bubble(), 3)
        (15.0, 0.2)
        >>> timeline.gaps()[0]
        Gap(rank=0, begin_s=2.0, end_s=4.0, place=2)
        >>> timeline.peak_nbytes.tolist()  # activations: one byte each by default
        [2.0, 1.0]
    """

    schedule: PipelineSchedule
    begin_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    messages: MessageColumns
    message_begin_s: NDArray[np.float64]
    message_end_s: NDArray[np.float64]
    costs: CostModel
    source: Literal["simulated", "measured"] = "simulated"
    buffering: Buffering = TAGGED
    task_end_s: NDArray[np.float64] | None = None

    @property
    def makespan_s(self) -> float:
        """Seconds until the last action ends."""
        return float(self.end_s.max(initial=0.0))

    @cached_property
    def busy_s(self) -> NDArray[np.float64]:
        """Seconds in which each rank computes; waiting for a message is idle time."""
        begin_s, end_s, ranks = self._own_work
        return np.bincount(ranks, end_s - begin_s, self.schedule.num_ranks).astype(np.float64)

    @cached_property
    def span_s(self) -> NDArray[np.float64]:
        """Seconds between the start of the first and the end of the last work of each rank."""
        begin_s, end_s, ranks = self._own_work
        first, last = np.full(self.schedule.num_ranks, np.inf), np.zeros(self.schedule.num_ranks)
        np.minimum.at(first, ranks, begin_s)
        np.maximum.at(last, ranks, end_s)
        return np.where(np.isfinite(first), last - first, 0.0)

    def bubble(self, kind: BubbleKind = "sync") -> float:
        """Return the share of time in which ranks are idle.

        Args:
            kind: "sync": relative to the makespan, as all ranks synchronise at the end of a step; used in the papers on
                GPipe, 1F1B and Chimera. "span": relative to the longest time between first and last work of a rank;
                used in the papers on zero bubbles, where ranks do not synchronise at the end of a step, but roll it
                back if a rank finds invalid gradients.

        Raises:
            InvalidArgument: `kind` is neither "sync" nor "span".
        """
        if kind not in ("sync", "span"):
            raise InvalidArgument(f'the kind of a bubble ratio must be "sync" or "span", got {kind!r}')
        duration_s = self.makespan_s if kind == "sync" else float(self.span_s.max(initial=0.0))
        if duration_s <= 0:
            return 0.0
        return max(0.0, 1.0 - float(self.busy_s.sum()) / (duration_s * self.schedule.num_ranks))

    @cached_property
    def memory(self) -> MemoryUse:
        """The memory use of ranks at every action."""
        return memory_use(self.schedule, self.costs)

    @property
    def peak_nbytes(self) -> NDArray[np.float64]:
        """The peak memory of each rank: weights of its stages, and stashes of micro-batches."""
        return self.memory.peak_nbytes

    def gaps(self, least_s: float = 0.0) -> list[Gap]:
        """Return the idle periods longer than `least_s`, ordered by rank and time."""
        return [gap for gap in self._all_gaps() if gap.end_s - gap.begin_s > max(least_s, 1e-12 * self.makespan_s)]

    def _all_gaps(self) -> Iterator[Gap]:
        columns = self.schedule.columns
        works = self._works
        for rank in range(self.schedule.num_ranks):
            first, last = columns.starts[rank], columns.starts[rank + 1]
            free_s = 0.0
            for row in range(first, last):
                if works[row]:
                    yield Gap(rank, free_s, float(self.begin_s[row]), int(row - first))
                    free_s = max(free_s, float(self.end_s[row]))
            yield Gap(rank, free_s, self.makespan_s, int(last - first))

    def critical_path(self) -> list[int]:
        """Return the critical path: row numbers in `PipelineSchedule.columns`, first to last.

        Each action on it is the last dependency of the next one to end. A message that waits until its sender may send
        counts as waiting for the action that produced it.
        """
        schedule, columns = self.schedule, self.schedule.columns
        if not len(columns):
            return []
        lowered = lower_to_tasks(schedule, self.costs, self.buffering)
        num_tasks = lowered.graph.num_tasks
        end_s = self.task_end_s
        if end_s is None:  # measured: a sum has ended, at the latest, when the first rank continues after it
            end_s = np.full(num_tasks, np.inf)
            end_s[lowered.message_tasks] = self.message_end_s
            end_s[lowered.begins] = self.begin_s
            end_s[lowered.ends] = self.end_s
            begins = np.zeros(num_tasks)
            begins[lowered.begins] = self.begin_s
            unknown = np.isinf(end_s[lowered.before])
            np.minimum.at(end_s, lowered.before[unknown], begins[lowered.after[unknown]])
        action_of = np.full(num_tasks, -1)
        rows = np.arange(len(columns))[::-1]  # the first of overlapping actions represents all
        action_of[lowered.begins[rows]] = rows
        action_of[lowered.ends[rows]] = rows
        order = np.argsort(lowered.after, kind="stable")
        before = lowered.before[order]
        starts = np.searchsorted(lowered.after[order], np.arange(num_tasks + 1))
        path: list[int] = []
        task = int(lowered.ends[int(np.argmax(self.end_s))])
        while True:
            if action_of[task] >= 0 and (not path or path[-1] != action_of[task]):
                path.append(int(action_of[task]))
            earlier = before[starts[task] : starts[task + 1]]
            if not len(earlier):
                return path[::-1]
            task = int(earlier[np.argmax(end_s[earlier])])

    def traffic(self) -> list[EdgeTraffic]:
        """Return the traffic between ranks, by edge between two stages."""
        messages = self.messages
        ends = np.stack([messages.from_stage, messages.to_stage, messages.from_rank, messages.to_rank])
        edges, which = np.unique(ends, axis=1, return_inverse=True)
        numbers = np.bincount(which.ravel(), minlength=edges.shape[1])
        nbytes = np.bincount(which.ravel(), messages.nbytes, edges.shape[1])
        rows = zip(*edges.tolist(), numbers.tolist(), nbytes.tolist(), strict=True)
        return [EdgeTraffic(*row) for row in rows]

    @cached_property
    def holds_rank(self) -> NDArray[np.bool_]:
        """Whether each action occupies its rank."""
        columns = self.schedule.columns
        return np.array([kinds()[name].resource == "rank" for name in columns.kinds], np.bool_)[columns.kind]

    @cached_property
    def _works(self) -> NDArray[np.bool_]:
        """Whether each action occupies its rank and takes time."""
        columns = self.schedule.columns
        costs = np.array([kinds()[name].cost is not None for name in columns.kinds], np.bool_)[columns.kind]
        works: NDArray[np.bool_] = self.holds_rank & costs
        return works

    @cached_property
    def _own_work(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int32]]:
        """Begin, end and rank of all computation; overlapping actions count once."""
        works = self._works & ~self.schedule.columns.with_previous
        return self.begin_s[works], self.end_s[works], self.schedule.columns.rank[works]
