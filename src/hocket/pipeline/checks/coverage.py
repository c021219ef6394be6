"""Check that every micro-batch passes every stage exactly once, forward and backward, on the right rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hocket.errors import DuplicateAction, MisplacedAction, MissingAction
from hocket.pipeline.costs import CostModel
from hocket.pipeline.dependencies import CARRIES, Keys, first_repeated, keyed_units, units_of
from hocket.pipeline.kind import SAME, Field, kinds
from hocket.pipeline.lowered import find_messages
from hocket.pipeline.schedule import PipelineSchedule
from hocket.pipeline.waiting import describe

_PASSES = (("F", ("F",)), ("B, or I and W,", ("B", "I")))


def check_coverage(schedule: PipelineSchedule) -> None:
    """Check that no action is missing, duplicated or on the wrong rank.

    Raises:
        MisplacedAction: an action is on a rank that does not hold its stage, or its micro-batch changes pipes.
        DuplicateAction: an action, or a pass of a micro-batch, occurs twice.
        MissingAction: a forward or backward pass, a weight gradient or one end of a message is missing.
    """
    _check_ranks(schedule)
    _check_pipes(schedule)
    _check_duplicates(schedule)
    for title, names in _PASSES:
        _check_passes(schedule, title, names)
    _check_weights(schedule)
    _check_messages(schedule)
    _check_sums(schedule)


def _check_ranks(schedule: PipelineSchedule) -> None:
    columns = schedule.columns
    holders = np.array(schedule.placement.ranks, np.int32)[columns.pipe, columns.stage]
    wrong = np.flatnonzero(holders != columns.rank)
    if wrong.size:
        row = int(wrong[0])
        pipe = f" of pipe {columns.pipe[row]}" if schedule.num_pipes > 1 else ""
        raise MisplacedAction(f"{describe(schedule, row)}: stage {columns.stage[row]}{pipe} is on rank {holders[row]}")


def _check_pipes(schedule: PipelineSchedule) -> None:
    """Check that all actions of a micro-batch are in one pipe."""
    columns = schedule.columns
    if schedule.num_pipes == 1:
        return
    row, micro_batch, key = keyed_units(schedule, np.flatnonzero(columns.micro_batch >= 0), ("step", "micro_batch"))
    pipe_of = np.full(int(key.max(initial=0)) + 1, -1, np.int32)
    pipe_of[key[::-1]] = columns.pipe[row][::-1]  # the pipe of the first action
    wrong = np.flatnonzero(pipe_of[key] != columns.pipe[row])
    if wrong.size:
        first, number = int(row[wrong[0]]), int(micro_batch[wrong[0]])
        raise MisplacedAction(
            f"{describe(schedule, first)}: micro-batch {number} is in pipe {pipe_of[key[wrong[0]]]} already"
        )


def _check_duplicates(schedule: PipelineSchedule) -> None:
    columns = schedule.columns
    for name in columns.kinds:
        row, _, key = keyed_units(schedule, columns.rows_of(name), (*SAME, "peer"))
        twice = first_repeated(key)
        if twice is not None:
            first, second = (int(row[place]) for place in twice)
            rank, index = schedule.place(first)
            raise DuplicateAction(
                f"{describe(schedule, second)}: this action occurs twice, first at rank {rank}, action {index}"
            )


def _check_passes(schedule: PipelineSchedule, title: str, names: tuple[str, ...]) -> None:
    """Check that each stage has exactly one such pass for every micro-batch of every step."""
    columns = schedule.columns
    row, micro_batch = units_of(columns, columns.rows(*names))
    shape = (schedule.num_steps, schedule.num_micro_batches, schedule.num_stages)
    place = np.ravel_multi_index((columns.step[row], micro_batch, columns.stage[row]), shape)
    counts = np.bincount(place, minlength=int(np.prod(shape)))
    wrong = np.flatnonzero(counts != 1)
    if not wrong.size:
        return
    step, number, stage = (int(each) for each in np.unravel_index(wrong[0], shape))
    of_step = f" in step {step}" if schedule.num_steps > 1 else ""
    if counts[wrong[0]] > 1:
        first, second = (int(each) for each in row[place == wrong[0]][:2])
        raise DuplicateAction(
            f"{describe(schedule, second)}: micro-batch {number} already has this pass through stage {stage}{of_step}, "
            f"at {describe(schedule, first)}"
        )
    raise MissingAction(
        f"micro-batch {number} has no {title} at stage {stage}{of_step}"
        f"{_around(schedule, row[(columns.stage[row] == stage) & (columns.step[row] == step)])}"
    )


def _around(schedule: PipelineSchedule, rows: NDArray[np.int64]) -> str:
    """Return where the first such action of another micro-batch is."""
    return f"; the first of another micro-batch is at {describe(schedule, int(rows[0]))}" if len(rows) else ""


def _check_weights(schedule: PipelineSchedule) -> None:
    """Check that every split backward pass has both parts."""
    columns = schedule.columns
    inputs, weights = (keyed_units(schedule, columns.rows(name)) for name in ("I", "W"))
    for units, others, other in ((inputs, weights, "W"), (weights, inputs, "I")):
        missing = np.flatnonzero(~np.isin(units.key, others.key))
        if missing.size:
            row = int(units.row[missing[0]])
            raise MissingAction(f"{describe(schedule, row)}: {other} of the same micro-batch and stage is missing")


def _check_messages(schedule: PipelineSchedule) -> None:
    """Check that a table with messages has exactly those that its dependencies require."""
    columns = schedule.columns
    names = [name for name in columns.kinds if kinds()[name].message]
    if not names:
        return
    bare = schedule.without(*names)
    (needed, describe_needed), (existing, describe_existing) = _messages(bare), _messages(schedule)
    missing = np.flatnonzero(~np.isin(needed, existing))
    if missing.size:
        raise MissingAction(f"the message for {describe_needed(int(missing[0]))}, on another rank, is missing")
    unused = np.flatnonzero(~np.isin(existing, needed))
    if unused.size:
        raise MisplacedAction(f"no action needs the message for {describe_existing(int(unused[0]))}")
    pairs = schedule.dependencies.carries == CARRIES.index("message")
    received, receivers = schedule.dependencies.before[pairs], schedule.dependencies.after[pairs]
    sent = columns.rows(*(name for name in names if kinds()[name].message == "send"))
    lost = np.setdiff1d(sent, received)
    if lost.size:
        raise MissingAction(f"{describe(schedule, int(lost[0]))}: its receive is missing")
    mismatched = np.flatnonzero(
        (columns.micro_batch[received] != columns.micro_batch[receivers])
        | (columns.width[received] != columns.width[receivers])
    )
    if mismatched.size:
        send, receive = int(received[mismatched[0]]), int(receivers[mismatched[0]])
        raise MisplacedAction(
            f"{describe(schedule, receive)}: its micro-batches differ from those of its send {schedule.action(send)}"
        )


def _check_sums(schedule: PipelineSchedule) -> None:
    """Check that all copies of a stage start its gradient sum and wait for it, if one does."""
    columns = schedule.columns
    starts, waits = columns.rows("SYNC_START"), columns.rows("SYNC_WAIT")
    of_copy: tuple[Field, ...] = ("step", "pipe", "stage")
    keys_by_kind = {
        name: keyed_units(schedule, rows, of_copy).key for name, rows in (("SYNC_START", starts), ("SYNC_WAIT", waits))
    }
    for step, stage in sorted(set(zip(columns.step[starts].tolist(), columns.stage[starts].tolist(), strict=True))):
        for pipe in range(schedule.num_pipes):
            key = Keys(schedule, of_copy).of(step=np.array([step]), pipe=np.array([pipe]), stage=np.array([stage]))
            for name, keys in keys_by_kind.items():
                if not np.isin(key, keys).all():
                    rank = schedule.placement.ranks[pipe][stage]
                    raise MissingAction(
                        f"the gradients of stage {stage} are summed in step {step}, but its copy in pipe {pipe}, on "
                        f"rank {rank}, has no {name}"
                    )


def _messages(schedule: PipelineSchedule) -> tuple[NDArray[np.int64], Callable[[int], str]]:
    """Return a key for every micro-batch of every message, and a function that describes one of them."""
    columns, messages = schedule.columns, find_messages(schedule, CostModel())
    row, micro_batch = units_of(columns, messages.destination)
    which = np.repeat(np.arange(len(messages)), columns.width[messages.destination])
    key = Keys(schedule, (*SAME, "peer")).of(
        step=columns.step[row],
        pipe=columns.pipe[row],
        stage=messages.to_stage[which],
        micro_batch=micro_batch + 1,
        peer=messages.from_stage[which] + 1,
    )

    def describe_message(index: int) -> str:
        message = which[index]
        return (
            f"micro-batch {micro_batch[index]} from stage {messages.from_stage[message]} to stage "
            f"{messages.to_stage[message]}"
        )

    return key, describe_message
