"""Every micro-batch goes through every stage exactly once, forward and backward, on the rank that holds it."""

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
    """Check that nothing is lost, done twice, or done elsewhere.

    Raises:
        MisplacedAction: an action stands on a rank that does not hold its stage, or its micro-batch changes pipes.
        DuplicateAction: an action, or a pass of a micro-batch, stands in the table twice.
        MissingAction: a forward or backward pass, a weight gradient or an end of a message is not there.
    """
    _check_ranks(schedule)
    _check_pipes(schedule)
    _check_duplicates(schedule)
    for words, names in _PASSES:
        _check_passes(schedule, words, names)
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
        raise MisplacedAction(
            f"{describe(schedule, row)}: stage {columns.stage[row]}{pipe} is held by rank {holders[row]}"
        )


def _check_pipes(schedule: PipelineSchedule) -> None:
    """A micro-batch goes through one pipe."""
    columns = schedule.columns
    if schedule.num_pipes == 1:
        return
    row, micro_batch, key = keyed_units(schedule, np.flatnonzero(columns.micro_batch >= 0), ("step", "micro_batch"))
    pipe_of = np.full(int(key.max(initial=0)) + 1, -1, np.int32)
    pipe_of[key[::-1]] = columns.pipe[row][::-1]  # that of the first action
    wrong = np.flatnonzero(pipe_of[key] != columns.pipe[row])
    if wrong.size:
        first, number = int(row[wrong[0]]), int(micro_batch[wrong[0]])
        raise MisplacedAction(
            f"{describe(schedule, first)}: micro-batch {number} goes through pipe {pipe_of[key[wrong[0]]]}, too"
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
                f"{describe(schedule, second)}: this stands in the table twice, at rank {rank}, action {index}, too"
            )


def _check_passes(schedule: PipelineSchedule, words: str, names: tuple[str, ...]) -> None:
    """Each stage has one of these for every micro-batch of every step."""
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
            f"{describe(schedule, second)}: micro-batch {number} has this pass through stage {stage}{of_step} already, "
            f"by {describe(schedule, first)}"
        )
    raise MissingAction(
        f"micro-batch {number} has no {words} at stage {stage}{of_step}"
        f"{_around(schedule, row[(columns.stage[row] == stage) & (columns.step[row] == step)])}"
    )


def _around(schedule: PipelineSchedule, rows: NDArray[np.int64]) -> str:
    """Where such actions of other micro-batches stand."""
    return f"; those of others begin at {describe(schedule, int(rows[0]))}" if len(rows) else ""


def _check_weights(schedule: PipelineSchedule) -> None:
    """A backward pass in two parts has both."""
    columns = schedule.columns
    inputs, weights = (keyed_units(schedule, columns.rows(name)) for name in ("I", "W"))
    for units, others, other in ((inputs, weights, "W"), (weights, inputs, "I")):
        lacking = np.flatnonzero(~np.isin(units.key, others.key))
        if lacking.size:
            row = int(units.row[lacking[0]])
            raise MissingAction(f"{describe(schedule, row)}: there is no {other} of the same micro-batch and stage")


def _check_messages(schedule: PipelineSchedule) -> None:
    """A table that names messages names all that have to be, and no others."""
    columns = schedule.columns
    names = [name for name in columns.kinds if kinds()[name].message]
    if not names:
        return
    bare = schedule.without(*names)
    (needed, needed_words), (named, named_words) = _messages(bare), _messages(schedule)
    lacking = np.flatnonzero(~np.isin(needed, named))
    if lacking.size:
        raise MissingAction(f"there is no message for {needed_words(int(lacking[0]))}, which are on two ranks")
    idle = np.flatnonzero(~np.isin(named, needed))
    if idle.size:
        raise MisplacedAction(f"nothing needs the message for {named_words(int(idle[0]))}")
    pairs = schedule.dependencies.carries == CARRIES.index("message")
    received, receivers = schedule.dependencies.before[pairs], schedule.dependencies.after[pairs]
    sent = columns.rows(*(name for name in names if kinds()[name].message == "send"))
    lost = np.setdiff1d(sent, received)
    if lost.size:
        raise MissingAction(f"{describe(schedule, int(lost[0]))}: nobody receives it")
    unlike = np.flatnonzero(
        (columns.micro_batch[received] != columns.micro_batch[receivers])
        | (columns.width[received] != columns.width[receivers])
    )
    if unlike.size:
        send, receive = int(received[unlike[0]]), int(receivers[unlike[0]])
        raise MisplacedAction(
            f"{describe(schedule, receive)}: it receives other micro-batches than {schedule.action(send)} sends"
        )


def _check_sums(schedule: PipelineSchedule) -> None:
    """If the gradients of a stage are summed, all copies take part, and wait for it."""
    columns = schedule.columns
    starts, waits = columns.rows("SYNC_START"), columns.rows("SYNC_WAIT")
    of_copy: tuple[Field, ...] = ("step", "pipe", "stage")
    found = {
        name: keyed_units(schedule, rows, of_copy).key for name, rows in (("SYNC_START", starts), ("SYNC_WAIT", waits))
    }
    for step, stage in sorted(set(zip(columns.step[starts].tolist(), columns.stage[starts].tolist(), strict=True))):
        for pipe in range(schedule.num_pipes):
            key = Keys(schedule, of_copy).of(step=np.array([step]), pipe=np.array([pipe]), stage=np.array([stage]))
            for name, keys in found.items():
                if not np.isin(key, keys).all():
                    rank = schedule.placement.ranks[pipe][stage]
                    raise MissingAction(
                        f"the gradients of stage {stage} are summed in step {step}, and its copy in pipe {pipe}, on "
                        f"rank {rank}, has no {name}"
                    )


def _messages(schedule: PipelineSchedule) -> tuple[NDArray[np.int64], Callable[[int], str]]:
    """A number for every micro-batch of every message, and the words for one of them."""
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

    def words(index: int) -> str:
        message = which[index]
        return (
            f"micro-batch {micro_batch[index]} from stage {messages.from_stage[message]} to stage "
            f"{messages.to_stage[message]}"
        )

    return key, words
