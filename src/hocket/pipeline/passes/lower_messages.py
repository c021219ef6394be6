"""Add explicit messages to a schedule, in an order that works with its buffers."""

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
    """Add a send after every action whose result another rank needs, and a receive on that rank.

    With unlimited tagged buffers, each message is received right before it is needed. Otherwise all ranks handle
    messages in one common order: the order in which they are ready in a simulation. As the program of every rank agrees
    with this order, a deadlock is impossible, even without buffers.

    Args:
        schedule: schedule without messages.
        buffering: buffering to prepare for: see `Buffering.parse`.
        costs: costs of the simulation.

    Returns:
        The schedule with SEND_F, RECV_F, SEND_B and RECV_B.

    Raises:
        InvalidArgument: the schedule has messages already, or data of a kind without micro-batches crosses ranks.
        PipelineDeadlock: the schedule deadlocks even without messages.

    Examples:
        >>> schedule = hk.pipeline.lower_messages(hk.pipeline.build("gpipe", 2, 1))
        >>> print(*schedule.actions[0])
        0F0 0SEND_F0>1 0RECV_B0>1 0B0
    """
    columns = schedule.columns
    named = [name for name in columns.kinds if kinds()[name].message]
    if named:
        raise InvalidArgument(
            f"the schedule has messages already ({', '.join(named)}); remove them with schedule.without(...)"
        )
    messages = find_messages(schedule, CostModel())
    is_unlimited = Buffering.parse(buffering) == TAGGED
    make_keys = _just_in_time_keys if is_unlimited else _common_order_keys
    group_keys, send_keys, receive_keys = make_keys(schedule, messages, costs)
    rows: list[list[tuple[Key, Action]]] = [[] for _ in range(schedule.num_ranks)]
    for row, (rank, group) in enumerate(zip(columns.rank.tolist(), columns.groups.tolist(), strict=True)):
        rows[rank].append((group_keys[group], schedule.action(row)))
    for number in range(len(messages)):
        producer, consumer = (schedule.action(int(rows[number])) for rows in (messages.source, messages.destination))
        if producer.micro_batch < 0 or consumer.micro_batch < 0:
            raise InvalidArgument(f"a message must be for micro-batches, unlike that from {producer} to {consumer}")
        direction = "F" if producer.stage < consumer.stage else "B"
        first = max(producer.micro_batch, consumer.micro_batch)
        width = min(producer.micro_batch + producer.width, consumer.micro_batch + consumer.width) - first
        pipe, step = producer.pipe, producer.step
        send = Action(f"SEND_{direction}", producer.stage, first, width, pipe, step, consumer.stage)
        receive = Action(f"RECV_{direction}", consumer.stage, first, width, pipe, step, producer.stage)
        rows[int(messages.from_rank[number])].append((send_keys[number], send))
        rows[int(messages.to_rank[number])].append((receive_keys[number], receive))
    return schedule.with_actions([[action for _, action in sorted(row, key=lambda each: each[0])] for row in rows])


def _just_in_time_keys(
    schedule: PipelineSchedule, messages: MessageColumns, costs: CostModel | None
) -> tuple[list[Key], list[Key], list[Key]]:
    """Return sort keys of actions, sends and receives: sends right after, receives right before an action."""
    groups = schedule.columns.groups
    num_groups = int(groups[-1]) + 1 if len(groups) else 0
    return (
        [(group, 1) for group in range(num_groups)],
        [(group, 2) for group in groups[messages.source].tolist()],
        [(group, 0) for group in groups[messages.destination].tolist()],
    )


def _common_order_keys(
    schedule: PipelineSchedule, messages: MessageColumns, costs: CostModel | None
) -> tuple[list[Key], list[Key], list[Key]]:
    """Return sort keys that are valid across ranks: a message has the end time of its producer, an action its begin.

    No action sorts before its dependencies: times never decrease along dependencies, and for equal times the number of
    actions on the path increases.
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
