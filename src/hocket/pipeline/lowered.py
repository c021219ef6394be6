"""A schedule as tasks of the discrete-event engine: the one reading of a table, for times and for deadlocks alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidArgument
from hocket.pipeline.buffering import TAGGED, Buffering
from hocket.pipeline.costs import CostModel, per_stage
from hocket.pipeline.dependencies import CARRIES, Rows
from hocket.pipeline.kind import kinds
from hocket.pipeline.schedule import PipelineSchedule
from hocket.sim import Messages, TaskGraph

Tasks: TypeAlias = NDArray[np.int64]

_PAIRED = CARRIES.index("message")
_SUM = CARRIES.index("sum")


@dataclass(frozen=True, eq=False)
class MessageColumns:
    """What crosses between ranks.

    Args:
        source, destination: actions, by their numbers in `PipelineSchedule.columns`: those that make and need what is
            sent, or those that send and receive it, where the table has such.
        from_rank, to_rank: of each.
        from_stage, to_stage: of each.
        nbytes: of each.
    """

    source: Rows
    destination: Rows
    from_rank: NDArray[np.int32]
    to_rank: NDArray[np.int32]
    from_stage: NDArray[np.int32]
    to_stage: NDArray[np.int32]
    nbytes: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, eq=False)
class Lowered:
    """Tasks, and what they stand for.

    Args:
        graph: of all tasks.
        begins, ends: the task of every action with which it begins, and ends; actions that overlap have them together.
        message_tasks: of every message.
        after, before: pairs of tasks, the one after the other.
        messages: that cross between ranks.
    """

    graph: TaskGraph
    begins: Tasks
    ends: Tasks
    message_tasks: Tasks
    after: Tasks
    before: Tasks
    messages: MessageColumns


def lower_to_tasks(schedule: PipelineSchedule, costs: CostModel, buffering: Buffering = TAGGED) -> Lowered:
    """Make a task of every action, or of those that overlap; of every message; and of every sum over copies.

    Raises:
        InvalidArgument: the table names no messages, and these are to find buffers of limited size.
    """
    return _Lowering(schedule, costs, buffering).run()


def action_seconds(schedule: PipelineSchedule, costs: CostModel) -> NDArray[np.float64]:
    """Return the seconds of every action by itself."""
    columns = schedule.columns
    names = [kinds()[name].cost for name in columns.kinds]
    table = (
        np.stack(
            [costs.seconds_of(name, schedule.num_stages) if name else np.zeros(schedule.num_stages) for name in names]
        )
        if names
        else np.zeros((0, schedule.num_stages))
    )
    return table[columns.kind, columns.stage] * columns.width


def find_messages(schedule: PipelineSchedule, costs: CostModel) -> MessageColumns:
    """Return what crosses between ranks: the messages that the table names, or else all that have to."""
    columns, dependencies = schedule.columns, schedule.dependencies
    is_named = dependencies.carries == _PAIRED
    crosses = is_named
    if not is_named.any():
        carried = (dependencies.carries > 0) & (dependencies.carries != _SUM)
        crosses = carried & (columns.rank[dependencies.after] != columns.rank[dependencies.before])
    source, destination = dependencies.before[crosses], dependencies.after[crosses]
    from_stage, to_stage = columns.stage[source], columns.stage[destination]
    nbytes = per_stage(costs.message_nbytes, schedule.num_stages, "message_nbytes")
    # A gradient is as large as what it is the gradient of, which the earlier of the two stages gave.
    units = columns.width[source] if is_named.any() else dependencies.units[crosses]
    sizes = nbytes[np.minimum(from_stage, to_stage)] * units
    return MessageColumns(
        source, destination, columns.rank[source], columns.rank[destination], from_stage, to_stage, sizes
    )


class _Lowering:
    """Builds the graph, one idea after the other."""

    def __init__(self, schedule: PipelineSchedule, costs: CostModel, buffering: Buffering) -> None:
        self.schedule, self.costs, self.buffering = schedule, costs, buffering
        self.columns, self.dependencies = schedule.columns, schedule.dependencies
        self.graph = TaskGraph()
        self.after: list[Tasks] = []
        self.before: list[Tasks] = []

    def run(self) -> Lowered:
        groups = self.columns.groups
        self.begins, self.ends = (tasks[groups] for tasks in self._add_groups())
        self._wait_for_actions()
        messages = find_messages(self.schedule, self.costs)
        message_tasks = self._add_messages(messages)
        self._order(message_tasks, self.ends[messages.source])
        self._order(self.begins[messages.destination], message_tasks)
        self._wait_for_buffers(messages, message_tasks)
        self._add_sums()
        after, before = np.concatenate(self.after), np.concatenate(self.before)
        self.graph.add_order(after, before)
        return Lowered(self.graph, self.begins, self.ends, message_tasks, after, before, messages)

    def _order(self, tasks: Tasks, others: Tasks) -> None:
        self.after.append(tasks)
        self.before.append(others)

    def _add_groups(self) -> tuple[Tasks, Tasks]:
        """A task for every group of actions that overlap, each after the one before it; return where they begin and
        end, which are two tasks for what a rank only starts."""
        columns = self.columns
        seconds = self._group_seconds()
        firsts = np.flatnonzero(~columns.with_previous)
        ranks = columns.rank[firsts]
        resources = np.array([kinds()[name].resource for name in columns.kinds], np.str_)[columns.kind[firsts]]
        aside = resources != "rank"
        begins = self.graph.add_tasks(np.where(aside, 0.0, seconds)).astype(np.int64)
        same_rank = ranks[1:] == ranks[:-1]
        self._order(begins[1:][same_rank], begins[:-1][same_rank])
        if not aside.any():
            return begins, begins
        ends = begins.copy()
        ends[aside] = self.graph.add_tasks(seconds[aside])
        self._order(ends[aside], begins[aside])
        names, places = np.unique(resources[aside], return_inverse=True)
        lanes = self.graph.add_resources(self.schedule.num_ranks * len(names), in_order=True)
        self.graph.use(ends[aside], lanes[places * self.schedule.num_ranks + ranks[aside]])
        return begins, ends

    def _group_seconds(self) -> NDArray[np.float64]:
        columns, costs = self.columns, self.costs
        num_groups = int(columns.groups[-1]) + 1 if len(columns) else 0
        seconds = np.bincount(columns.groups, action_seconds(self.schedule, costs), num_groups).astype(np.float64)
        if costs.overlapped_s:
            names = [kinds()[name].cost or name for name in columns.kinds]
            starts = np.append(np.flatnonzero(~columns.with_previous), len(columns))
            for group in np.flatnonzero(np.diff(starts) > 1):
                key = "&".join(names[kind] for kind in columns.kind[starts[group] : starts[group + 1]])
                if key in costs.overlapped_s:
                    of_stage = per_stage(costs.overlapped_s[key], self.schedule.num_stages, f"seconds of {key}")
                    seconds[group] = of_stage[columns.stage[starts[group]]]
        return seconds

    def _wait_for_actions(self) -> None:
        """Actions that overlap begin together: what one of them waits for, all do, but for each other."""
        groups, dependencies = self.columns.groups, self.dependencies
        direct = (groups[dependencies.after] != groups[dependencies.before]) & (dependencies.carries != _SUM)
        self._order(self.begins[dependencies.after[direct]], self.ends[dependencies.before[direct]])

    def _add_messages(self, messages: MessageColumns) -> Tasks:
        """A task for every message; a rank sends one at a time over a connection, and receives one."""
        fabric = self.costs.network()
        if fabric is None or not len(messages):
            return self.graph.add_tasks(np.zeros(len(messages))).astype(np.int64)
        num_ranks = self.schedule.num_ranks
        columns = Messages(messages.from_rank, messages.to_rank, messages.nbytes, num_ranks, 1)
        tasks = fabric.add_messages(self.graph, columns).astype(np.int64)
        connections = fabric.connections(messages.from_rank, messages.to_rank)
        remote = messages.from_rank != messages.to_rank
        for each in (0, 1):
            over = remote & (connections == each)
            for ranks in (messages.from_rank[over], messages.to_rank[over]):
                self.graph.use(tasks[over], self.graph.add_resources(num_ranks)[ranks])
        return tasks

    def _wait_for_buffers(self, messages: MessageColumns, tasks: Tasks) -> None:
        if self.buffering == TAGGED or not len(messages):
            return
        columns = self.columns
        if not (self.dependencies.carries == _PAIRED).any():
            raise InvalidArgument(f"buffering {self.buffering} needs a table with messages: see `lower_messages`")
        if self.buffering.slots == 0:
            self._meet(messages, tasks)
            return
        channels = (
            (columns.pipe[messages.source], messages.from_stage, messages.to_stage)
            if self.buffering.tagged
            else (messages.from_rank, messages.to_rank)
        )
        _, channel = np.unique(np.stack(channels), axis=1, return_inverse=True)
        as_sent = np.lexsort((messages.source, channel))
        as_received = np.lexsort((messages.destination, channel))
        channel = channel[as_sent]
        received = self.ends[messages.destination]
        if not self.buffering.tagged:
            follows = channel[1:] == channel[:-1]
            self._order(self.begins[messages.destination][as_sent[1:]][follows], received[as_sent[:-1]][follows])
        slots = self.buffering.slots
        if slots is not None and slots < len(channel):
            same = channel[slots:] == channel[:-slots]
            sends = self.begins[messages.source]
            self._order(sends[as_sent[slots:]][same], received[as_received[:-slots]][same])

    def _meet(self, messages: MessageColumns, tasks: Tasks) -> None:
        """Without buffers a message begins when both ends have come to it, and both go on when it is over."""
        columns = self.columns
        done = self.ends.copy()
        done[messages.source] = tasks  # a rank goes on from a send when its message is over
        earlier = messages.destination - 1
        has_earlier = (earlier >= 0) & (columns.rank[earlier] == messages.to_rank)
        self._order(tasks[has_earlier], done[earlier[has_earlier]])
        later = np.minimum(messages.source + 1, len(columns) - 1)
        has_later = (messages.source + 1 < len(columns)) & (columns.rank[later] == messages.from_rank)
        self._order(self.begins[later[has_later]], tasks[has_later])

    def _add_sums(self) -> None:
        """A task for every sum of gradients; a rank takes part in one at a time."""
        columns, dependencies = self.columns, self.dependencies
        of_sums = dependencies.carries == _SUM
        if not of_sums.any():
            return
        nbytes = per_stage(self.costs.gradient_nbytes, self.schedule.num_stages, "gradient_nbytes")
        waits, starts = dependencies.after[of_sums], dependencies.before[of_sums]
        networks = self.graph.add_resources(self.schedule.num_ranks)
        sums = columns.step[starts].astype(np.int64) * self.schedule.num_stages + columns.stage[starts]
        for each in np.unique(sums):
            of_this = sums == each
            ranks = np.unique(columns.rank[starts[of_this]])
            stage = int(each) % self.schedule.num_stages
            seconds = self.costs.all_reduce_s(float(nbytes[stage]), ranks.tolist(), self.schedule.num_ranks)
            task = self.graph.add_tasks(seconds).astype(np.int64)
            self.graph.use(np.repeat(task, len(ranks)), networks[ranks])
            begun, awaited = np.unique(starts[of_this]), np.unique(waits[of_this])
            self._order(np.repeat(task, len(begun)), self.ends[begun])
            self._order(self.begins[awaited], np.repeat(task, len(awaited)))
