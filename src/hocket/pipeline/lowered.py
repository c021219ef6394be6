"""Translate a schedule into tasks of the discrete-event engine, for both times and deadlocks."""

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
    """The messages between ranks, one array per field.

    Args:
        source, destination: row numbers in `PipelineSchedule.columns` of the actions that produce and consume the data;
            in a table with messages, of the send and the receive.
        from_rank, to_rank: ranks of the message.
        from_stage, to_stage: stages of the message.
        nbytes: size of the message.
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
    """Tasks, and the actions and messages they represent.

    Args:
        graph: graph of all tasks.
        begins, ends: first and last task of every action; overlapping actions share them.
        message_tasks: task of every message.
        after, before: `after[i]` depends on `before[i]`.
        messages: messages between ranks.
    """

    graph: TaskGraph
    begins: Tasks
    ends: Tasks
    message_tasks: Tasks
    after: Tasks
    before: Tasks
    messages: MessageColumns


def lower_to_tasks(schedule: PipelineSchedule, costs: CostModel, buffering: Buffering = TAGGED) -> Lowered:
    """Create a task for every group of overlapping actions, every message, and every gradient sum over copies.

    Raises:
        InvalidArgument: the buffering is limited, but the table has no messages.
    """
    return _Lowering(schedule, costs, buffering).run()


def action_seconds(schedule: PipelineSchedule, costs: CostModel) -> NDArray[np.float64]:
    """Return the seconds of every action without overlap."""
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
    """Return the messages of the table, or, in a table without messages, all that its dependencies require."""
    columns, dependencies = schedule.columns, schedule.dependencies
    is_explicit = dependencies.carries == _PAIRED
    is_message = is_explicit
    if not is_explicit.any():
        has_data = (dependencies.carries > 0) & (dependencies.carries != _SUM)
        is_message = has_data & (columns.rank[dependencies.after] != columns.rank[dependencies.before])
    source, destination = dependencies.before[is_message], dependencies.after[is_message]
    from_stage, to_stage = columns.stage[source], columns.stage[destination]
    nbytes = per_stage(costs.message_nbytes, schedule.num_stages, "message_nbytes")
    # A gradient has the size of the output that the earlier of the two stages produced.
    units = columns.width[source] if is_explicit.any() else dependencies.units[is_message]
    sizes = nbytes[np.minimum(from_stage, to_stage)] * units
    return MessageColumns(
        source, destination, columns.rank[source], columns.rank[destination], from_stage, to_stage, sizes
    )


class _Lowering:
    """Builds the graph: groups of actions, dependencies, messages, buffers, gradient sums."""

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
        """Add a task for every group of overlapping actions, in program order; return first and last tasks.

        These differ for background actions, which a rank starts but does not wait for.
        """
        columns = self.columns
        seconds = self._group_seconds()
        firsts = np.flatnonzero(~columns.with_previous)
        ranks = columns.rank[firsts]
        resources = np.array([kinds()[name].resource for name in columns.kinds], np.str_)[columns.kind[firsts]]
        in_background = resources != "rank"
        begins = self.graph.add_tasks(np.where(in_background, 0.0, seconds)).astype(np.int64)
        same_rank = ranks[1:] == ranks[:-1]
        self._order(begins[1:][same_rank], begins[:-1][same_rank])
        if not in_background.any():
            return begins, begins
        ends = begins.copy()
        ends[in_background] = self.graph.add_tasks(seconds[in_background])
        self._order(ends[in_background], begins[in_background])
        names, codes = np.unique(resources[in_background], return_inverse=True)
        lanes = self.graph.add_resources(self.schedule.num_ranks * len(names), in_order=True)
        self.graph.use(ends[in_background], lanes[codes * self.schedule.num_ranks + ranks[in_background]])
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
        """Order groups by dependencies; overlapping actions start together, after the dependencies of all of them."""
        groups, dependencies = self.columns.groups, self.dependencies
        direct = (groups[dependencies.after] != groups[dependencies.before]) & (dependencies.carries != _SUM)
        self._order(self.begins[dependencies.after[direct]], self.ends[dependencies.before[direct]])

    def _add_messages(self, messages: MessageColumns) -> Tasks:
        """Add a task for every message; a rank sends and receives one message at a time per connection."""
        fabric = self.costs.network()
        if fabric is None or not len(messages):
            return self.graph.add_tasks(np.zeros(len(messages))).astype(np.int64)
        num_ranks = self.schedule.num_ranks
        columns = Messages(messages.from_rank, messages.to_rank, messages.nbytes, num_ranks, 1)
        tasks = fabric.add_messages(self.graph, columns).astype(np.int64)
        connections = fabric.connections(messages.from_rank, messages.to_rank)
        remote = messages.from_rank != messages.to_rank
        for connection in (0, 1):
            over = remote & (connections == connection)
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
            self._order_rendezvous(messages, tasks)
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

    def _order_rendezvous(self, messages: MessageColumns, tasks: Tasks) -> None:
        """Without buffers, a message starts when both ends have reached it, and both continue when it ends."""
        columns = self.columns
        done = self.ends.copy()
        done[messages.source] = tasks  # a rank continues after a send when its message ends
        earlier = messages.destination - 1
        has_earlier = (earlier >= 0) & (columns.rank[earlier] == messages.to_rank)
        self._order(tasks[has_earlier], done[earlier[has_earlier]])
        later = np.minimum(messages.source + 1, len(columns) - 1)
        has_later = (messages.source + 1 < len(columns)) & (columns.rank[later] == messages.from_rank)
        self._order(self.begins[later[has_later]], tasks[has_later])

    def _add_sums(self) -> None:
        """Add a task for every gradient sum; a rank takes part in one at a time."""
        columns, dependencies = self.columns, self.dependencies
        of_sums = dependencies.carries == _SUM
        if not of_sums.any():
            return
        nbytes = per_stage(self.costs.gradient_nbytes, self.schedule.num_stages, "gradient_nbytes")
        waits, starts = dependencies.after[of_sums], dependencies.before[of_sums]
        networks = self.graph.add_resources(self.schedule.num_ranks)
        sums = columns.step[starts].astype(np.int64) * self.schedule.num_stages + columns.stage[starts]
        for number in np.unique(sums):
            of_this = sums == number
            ranks = np.unique(columns.rank[starts[of_this]])
            stage = int(number) % self.schedule.num_stages
            seconds = self.costs.all_reduce_s(float(nbytes[stage]), ranks.tolist(), self.schedule.num_ranks)
            task = self.graph.add_tasks(seconds).astype(np.int64)
            self.graph.use(np.repeat(task, len(ranks)), networks[ranks])
            own_starts, own_waits = np.unique(starts[of_this]), np.unique(waits[of_this])
            self._order(np.repeat(task, len(own_starts)), self.ends[own_starts])
            self._order(self.begins[own_waits], np.repeat(task, len(own_waits)))
