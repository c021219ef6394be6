"""The loop over the epochs of a training."""

from __future__ import annotations

import time
from collections.abc import Callable

from hocket.errors import InvalidArgument
from hocket.measure.progress_bar import progress
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
    """Train from the trainer's present epoch and step on; called by all ranks.

    Args:
        trainer: trainer of the model, with its callbacks. `Checkpoint` callbacks run last at the end of an epoch.
        source: source of the batches.
        epochs: number of epochs in all, including those before a resumption.
        validation: source of the batches that are evaluated after every epoch; None: no validation.
        shows: show progress on this rank.
        max_steps: number of steps in all after which the training ends, in any epoch; None: no limit.
        validates: (index of an epoch) -> whether a validation follows it.
        logs_speed: whether the numbers of an epoch, for callbacks and history, have "samples_per_s".
        counts_from_here: whether `max_steps` counts the steps of this call only.

    Raises:
        InvalidArgument: the source has no batch.

    Examples:
        >>> import torch
        >>> data = (np.ones((8, 2), np.float32), np.ones((8, 1), np.float32))
        >>> source = hk.train.source_of(data, comm, batch_size=4, shuffle=True, seed=0, drop_last=False)
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
        >>> schedule = hk.pipeline.build("1f1b", num_ranks=2, num_micro_batches=2)
        >>> split = hk.train.graph_of(model).split([0, 1, 2])
        >>> with hk.train.PipelineExecutor(schedule, split, comm, torch.nn.functional.mse_loss) as executor:
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...     trainer = hk.train.Trainer(executor, hk.train.TorchUpdate(optimizer, model[comm.rank].parameters()))
        ...     history = hk.train.run_epochs(trainer, source, epochs=2)
        >>> history.epoch, len(history.batch_losses)
        ([0, 1], 4)
    """
    history = History()
    trainer.stop_training = trainer.is_stopping = False
    last = sorted(trainer.callbacks, key=lambda each: isinstance(each, Checkpoint))
    for each in trainer.callbacks:
        each.on_train_begin(trainer)
    if counts_from_here and max_steps is not None:
        max_steps += trainer.num_steps
    _agree_to_stop(trainer)
    while trainer.epoch < epochs and not (trainer.stop_training or _has_reached(trainer, max_steps)):
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
            validation_logs = trainer.evaluate(validation, trainer.callbacks)
            logs.update({f"val_{name}": value for name, value in validation_logs.items()})
        for each in last:
            if each.sees_parts or not trainer.num_batches:
                each.on_epoch_end(trainer, epoch, logs)
        history.add(epoch, logs)
        _agree_to_stop(trainer)
    for each in trainer.callbacks:
        each.on_train_end(trainer)
    return history


def _train_epoch(
    trainer: Trainer, source: Source, title: str, history: History, shows: bool, max_steps: int | None
) -> dict[str, float]:
    """Train on the remaining batches of an epoch; return its numbers, or an empty dictionary without batches."""
    num_samples = 0
    begin_s = time.perf_counter()
    is_whole = True
    was_begun = trainer.num_batches > 0
    if trainer.meter is not None:
        trainer.meter.begin()
    with progress(title, unit="steps", shown=shows) as update:
        batches = source.batches(trainer.epoch, trainer.num_batches)
        for batch in batches:
            for each in trainer.callbacks:
                each.on_batch_begin(trainer, trainer.num_steps)
            logs = trainer.train_step(batch)
            trainer.num_batches += 1
            num_samples += batch.num_samples
            history.batch_losses.append(logs["loss"])
            state = ", ".join(f"{name} {value:.4g}" for name, value in logs.items())
            update(trainer.num_batches, _num_expected(trainer, source, max_steps), state)
            for each in trainer.callbacks:
                each.on_batch_end(trainer, trainer.num_steps, logs)
            if trainer.is_stopping or _has_reached(trainer, max_steps):
                trainer.stop_training = True
                if source.num_batches is not None:
                    is_whole = trainer.num_batches >= source.num_batches
                else:  # After `max_steps` a resumption must know; after a stop, read no batch that is not trained.
                    is_whole = not trainer.is_stopping and next(batches, None) is None
                break
    means = trainer.means_so_far(trainer.totals) if num_samples else {}
    if is_whole:
        trainer.epoch, trainer.num_batches, trainer.totals = trainer.epoch + 1, 0, {}
    if not num_samples:
        if was_begun:
            return {}
        raise InvalidArgument(f"{title}: the data have no batch; they must have 1 or more")
    seconds = trainer.comm.broadcast_object(time.perf_counter() - begin_s, 0)
    return means | {"samples_per_s": num_samples / seconds}


def _agree_to_stop(trainer: Trainer) -> None:
    trainer.stop_training = any(trainer.comm.all_gather_object(trainer.stop_training))


def _num_expected(trainer: Trainer, source: Source, max_steps: int | None) -> int:
    """Return the number of batches of the epoch, or of its part before the training ends."""
    number = trainer.num_batches if source.num_batches is None else source.num_batches
    return number if max_steps is None else min(number, trainer.num_batches + max_steps - trainer.num_steps)


def _has_reached(trainer: Trainer, max_steps: int | None) -> bool:
    return max_steps is not None and trainer.num_steps >= max_steps
