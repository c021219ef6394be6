"""Names the messages of a schedule, in an order that its buffers allow."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidArgument
from hocket.pipeline.action import Action
from hocket.pipeline.buffering import TAGGED, Buffering
from hocket.pipeline.costs import CostModel
from hocket.pipeline.kind import kinds
from hocket.pipeline.lowered import MessageColumns, find_messages
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.simulation import simulate

Key: TypeAlias = tuple[float, ...]


def lower_messages(
    schedule: PipelineSchedule, buffering: Buffering | str | int = TAGGED, costs: CostModel | None = None
) -> PipelineSchedule:
    """Add a send after every action whose result another rank needs, and a receive before that rank needs it.

    With as many tagged messages on their way as come, each is received just before it is needed. Otherwise all ranks
    take part in messages in one common order, that in which they are ready by simulation: since every rank does all
    that it does in an order that agrees with it, no ranks can wait for each other, even without any buffer.

    Args:
        schedule: without messages.
        buffering: that the messages will find.
        costs: for the common order.

    Raises:
        InvalidArgument: the schedule has messages already, or kinds whose messages are of no micro-batch.
        PipelineDeadlock: it would wait for itself even without messages.
    """
    columns = schedule.columns
    named = [name for name in columns.kinds if kinds()[name].message]
    if named:
        raise InvalidArgument(f"the table names messages already ({', '.join(named)}); without(...) takes them out")
    messages = find_messages(schedule, CostModel())
    is_late = Buffering.parse(buffering) == TAGGED
    group_keys, send_keys, receive_keys = (_late if is_late else _common)(schedule, messages, costs)
    rows: list[list[tuple[Key, Action]]] = [[] for _ in range(schedule.num_ranks)]
    for row, (rank, group) in enumerate(zip(columns.rank.tolist(), columns.groups.tolist(), strict=True)):
        rows[rank].append((group_keys[group], schedule.action(row)))
    for number in range(len(messages)):
        made, needed = (schedule.action(int(rows[number])) for rows in (messages.source, messages.destination))
        if made.micro_batch < 0 or needed.micro_batch < 0:
            raise InvalidArgument(f"messages are of micro-batches; what {needed} needs of {made} is not")
        way = "F" if made.stage < needed.stage else "B"
        first = max(made.micro_batch, needed.micro_batch)
        width = min(made.micro_batch + made.width, needed.micro_batch + needed.width) - first
        send = Action(f"SEND_{way}", made.stage, first, width, made.pipe, made.step, needed.stage)
        receive = Action(f"RECV_{way}", needed.stage, first, width, made.pipe, made.step, made.stage)
        rows[int(messages.from_rank[number])].append((send_keys[number], send))
        rows[int(messages.to_rank[number])].append((receive_keys[number], receive))
    return schedule.with_actions([[action for _, action in sorted(row, key=lambda each: each[0])] for row in rows])


def _late(
    schedule: PipelineSchedule, messages: MessageColumns, costs: CostModel | None
) -> tuple[list[Key], list[Key], list[Key]]:
    """Keys by which actions, sends and receives are sorted on their ranks: right after, and right before."""
    groups = schedule.columns.groups
    num_groups = int(groups[-1]) + 1 if len(groups) else 0
    return (
        [(group, 1) for group in range(num_groups)],
        [(group, 2) for group in groups[messages.source].tolist()],
        [(group, 0) for group in groups[messages.destination].tolist()],
    )


def _common(
    schedule: PipelineSchedule, messages: MessageColumns, costs: CostModel | None
) -> tuple[list[Key], list[Key], list[Key]]:
    """The same keys for all ranks: the time of a message is the end of what made it, that of an action its beginning.

    Nothing comes before what it needs: times grow along all dependencies, and where they are equal the number of
    actions on the way does.
    """
    times = simulate(schedule, costs)
    used = {kinds()[name].cost for name in schedule.columns.kinds}
    depths = simulate(schedule, CostModel(seconds={name: 1.0 for name in used if name}))
    firsts = np.flatnonzero(~schedule.columns.with_previous)

    def keys(time: NDArray[np.float64], depth: NDArray[np.float64], place: int) -> list[Key]:
        numbers = range(len(time))
        return list(zip(time.tolist(), depth.tolist(), [place] * len(time), numbers, strict=True))

    of_messages = keys(times.end_s[messages.source], depths.end_s[messages.source], 0)
    return keys(times.begin_s[firsts], depths.begin_s[firsts], 1), of_messages, of_messages
