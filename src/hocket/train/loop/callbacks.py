"""Callbacks that trainings often need: early stopping, checkpoints and schedules of the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket.errors import InvalidArgument
from hocket.suggestions import unknown
from hocket.train.checks import check_count
from hocket.train.loop.callback import Callback, TrainerView


class EarlyStopping(Callback):
    """Ends the training when a number has not become better for some epochs.

    Args:
        monitor: the number, such as "val_loss".
        patience: epochs without a better one.
        mode: "min" or "max": what is better.
    """

    def __init__(self, monitor: str = "val_loss", patience: int = 0, mode: str = "min") -> None:
        if mode not in ("min", "max"):
            raise InvalidArgument(f'mode is "min" or "max", not {mode!r}')
        self._monitor, self._patience, self._sign = monitor, patience, 1 if mode == "min" else -1
        self._best = float("inf")
        self._waited = 0

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, Any]) -> None:
        value = self._sign * _watched(self._monitor, logs)
        if value < self._best:
            self._best, self._waited = value, 0
        else:
            self._waited += 1
            trainer.stop_training = trainer.stop_training or self._waited > self._patience

    def state(self) -> Mapping[str, Any]:
        return {"best": self._best, "waited": self._waited}

    def load(self, state: Mapping[str, Any]) -> None:
        self._best, self._waited = state["best"], state["waited"]


class Checkpoint(Callback):
    """Saves the whole training after every so many epochs, when all other callbacks have seen the epoch, and where it
    ends within one.

    Args:
        path: of the file; "{epoch}" in it becomes the number of the epoch.
        every: epochs.
    """

    sees_parts = True

    def __init__(self, path: str | Path, every: int = 1) -> None:
        check_count("every", every)
        self._path, self._every = str(path), every

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, Any]) -> None:
        if (epoch + 1) % self._every == 0 or trainer.num_batches:
            trainer.save(self._path.format(epoch=epoch))


class LearningRate(Callback):
    """Steps a torch scheduler after every epoch, or after every step.

    Args:
        scheduler: of the optimizer that trains.
        by: "epoch" or "step".
        monitor: the number that the scheduler is told, such as "val_loss" for `ReduceLROnPlateau`; None: none.
    """

    def __init__(self, scheduler: object, by: str = "epoch", monitor: str | None = None) -> None:
        if by not in ("epoch", "step"):
            raise InvalidArgument(f'by is "epoch" or "step", not {by!r}')
        self._scheduler, self._by, self._monitor = scheduler, by, monitor

    def on_batch_end(self, trainer: TrainerView, step: int, logs: Mapping[str, float]) -> None:
        if self._by == "step":
            self._step(logs)

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, Any]) -> None:
        if self._by == "epoch":
            self._step(logs)

    def state(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._scheduler.state_dict()  # type: ignore[attr-defined]
        return found

    def load(self, state: Mapping[str, Any]) -> None:
        self._scheduler.load_state_dict(dict(state))  # type: ignore[attr-defined]

    def _step(self, logs: Mapping[str, float]) -> None:
        arguments = [] if self._monitor is None else [_watched(self._monitor, logs)]
        self._scheduler.step(*arguments)  # type: ignore[attr-defined]


def _watched(name: str, logs: Mapping[str, float]) -> float:
    if name not in logs:
        raise InvalidArgument(unknown("value to watch", name, logs))
    return logs[name]
