"""A training from its first epoch to its last one."""

from __future__ import annotations

import time
from collections.abc import Callable

from hocket.errors import InvalidArgument
from hocket.measure.progress import progress
from hocket.train.data.batches import Source
from hocket.train.loop.callbacks import Checkpoint
from hocket.train.loop.history import History
from hocket.train.loop.trainer import Trainer


def run_epochs(
    trainer: Trainer,
    source: Source,
    epochs: int,
    validation: Source | None = None,
    *,
    shows: bool = False,
    max_steps: int | None = None,
    validates: Callable[[int], bool] = lambda epoch: True,
    logs_speed: bool = True,
    counts_from_here: bool = False,
) -> History:
    """Train for some epochs, from where the trainer stands; called by all ranks.

    Args:
        trainer: of the model, with its callbacks; those that save it come last at the end of an epoch.
        source: of batches.
        epochs: in all: those that were trained before a resumption count.
        validation: of batches that are evaluated after every epoch.
        shows: progress, on this rank.
        max_steps: after which it ends, whatever the epoch; those before a resumption count.
        counts_from_here: those do not, nor any others before this call.
        validates: whether it does after an epoch of that number, counted from 0.
        logs_speed: whether callbacks and history have "samples_per_s" among the numbers of an epoch.

    Raises:
        InvalidArgument: the data gave no batch.
    """
    history = History()
    trainer.stop_training = trainer.is_stopping = False
    last = sorted(trainer.callbacks, key=lambda each: isinstance(each, Checkpoint))
    for each in trainer.callbacks:
        each.on_train_begin(trainer)
    if counts_from_here and max_steps is not None:
        max_steps += trainer.num_steps
    _agree_to_stop(trainer)
    while trainer.epoch < epochs and not (trainer.stop_training or _is_enough(trainer, max_steps)):
        epoch = trainer.epoch
        for each in trainer.callbacks:
            each.on_epoch_begin(trainer, epoch)
        logs = _train_epoch(trainer, source, f"epoch {epoch + 1} of {epochs}", history, shows, max_steps)
        if not logs:
            continue
        speed = logs.pop("samples_per_s")
        history.samples_per_s.append(speed)
        if logs_speed:
            logs["samples_per_s"] = speed
        if validation is not None and validates(epoch):
            found = trainer.evaluate(validation, trainer.callbacks)
            logs.update({f"val_{name}": value for name, value in found.items()})
        for each in last:
            if each.sees_parts or not trainer.num_batches:
                each.on_epoch_end(trainer, epoch, logs)
        history.add(epoch, logs)
        _agree_to_stop(trainer)
    for each in trainer.callbacks:
        each.on_train_end(trainer)
    return history


def _train_epoch(
    trainer: Trainer, source: Source, words: str, history: History, shows: bool, max_steps: int | None
) -> dict[str, float]:
    """Train on what is left of an epoch; return its numbers, or an empty dictionary if nothing was left."""
    num_samples = 0
    begin_s = time.perf_counter()
    is_whole = True
    was_begun = trainer.num_batches > 0
    if trainer.meter is not None:
        trainer.meter.begin()
    with progress(words, unit="steps", shown=shows) as update:
        batches = source.batches(trainer.epoch, trainer.num_batches)
        for batch in batches:
            for each in trainer.callbacks:
                each.on_batch_begin(trainer, trainer.num_steps)
            logs = trainer.train_step(batch)
            trainer.num_batches += 1
            num_samples += batch.num_samples
            history.batch_losses.append(logs["loss"])
            told = ", ".join(f"{name} {value:.4g}" for name, value in logs.items())
            update(trainer.num_batches, _num_expected(trainer, source, max_steps), told)
            for each in trainer.callbacks:
                each.on_batch_end(trainer, trainer.num_steps, logs)
            if trainer.is_stopping or _is_enough(trainer, max_steps):
                trainer.stop_training = True
                if source.num_batches is not None:
                    is_whole = trainer.num_batches >= source.num_batches
                else:  # who goes on after `max_steps` has to know; after a stop nothing is read that is not trained
                    is_whole = not trainer.is_stopping and next(batches, None) is None
                break
    found = trainer.means_so_far(trainer.totals) if num_samples else {}
    if is_whole:
        trainer.epoch, trainer.num_batches, trainer.totals = trainer.epoch + 1, 0, {}
    if not num_samples:
        if was_begun:
            return {}
        raise InvalidArgument(f"{words}: the data gave no batch")
    seconds = trainer.comm.broadcast_object(time.perf_counter() - begin_s, 0)
    return found | {"samples_per_s": num_samples / seconds}


def _agree_to_stop(trainer: Trainer) -> None:
    trainer.stop_training = any(trainer.comm.all_gather_object(trainer.stop_training))


def _num_expected(trainer: Trainer, source: Source, max_steps: int | None) -> int:
    """How many batches of the epoch there will have been at its end, or that of the training."""
    number = trainer.num_batches if source.num_batches is None else source.num_batches
    return number if max_steps is None else min(number, trainer.num_batches + max_steps - trainer.num_steps)


def _is_enough(trainer: Trainer, max_steps: int | None) -> bool:
    return max_steps is not None and trainer.num_steps >= max_steps
