"""Common callbacks: early stopping, checkpoints and schedules of the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hocket.errors import InvalidArgument
from hocket.suggestions import check_known
from hocket.train.checks import check_count
from hocket.train.loop.callback import Callback, TrainerView


class EarlyStopping(Callback):
    """Ends the training when a number has not improved for some epochs.

    Args:
        monitor: name of the number, such as "val_loss".
        patience: number of epochs without improvement that are allowed.
        mode: "min": less is better; "max": more is better.

    Raises:
        InvalidArgument: `mode` is another word.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> history = hk.train.fit(
        ...     model, (torch.ones(4, 2), torch.ones(4, 1)), loss=torch.nn.functional.mse_loss, epochs=10,
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.0), show_progress=False,
        ...     callbacks=[hk.train.EarlyStopping("loss", patience=1)]
        ... )
        >>> history.epoch  # with a learning rate of 0 the loss never improves
        [0, 1, 2]
    """

    def __init__(self, monitor: str = "val_loss", patience: int = 0, mode: str = "min") -> None:
        if mode not in ("min", "max"):
            raise InvalidArgument(f'mode must be "min" or "max", not {mode!r}')
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
    """Saves the whole training every few epochs, after all other callbacks, and when the training ends within an epoch.

    Args:
        path: path of the file; "{epoch}" in it is replaced by the number of the epoch.
        every: number of epochs between two files.

    Raises:
        InvalidArgument: `every` is not an int of 1 or more.

    Examples:
        >>> import pathlib, torch
        >>> model = torch.nn.Linear(2, 1)
        >>> history = hk.train.fit(
        ...     model, (torch.ones(4, 2), torch.ones(4, 1)), loss=torch.nn.functional.mse_loss, epochs=4,
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1), show_progress=False,
        ...     callbacks=[hk.train.Checkpoint("epoch-{epoch}.pt", every=2)]
        ... )
        >>> sorted(path.name for path in pathlib.Path().glob("epoch-*.pt"))
        ['epoch-1.pt', 'epoch-3.pt']
    """

    sees_parts = True

    def __init__(self, path: str | Path, every: int = 1) -> None:
        check_count("every", every)
        self._path, self._every = str(path), every

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, Any]) -> None:
        if (epoch + 1) % self._every == 0 or trainer.num_batches:
            trainer.save(self._path.format(epoch=epoch))


class LearningRate(Callback):
    """Calls a torch scheduler of the learning rate after every epoch, or after every step.

    Args:
        scheduler: a scheduler of the optimizer that trains.
        by: "epoch" or "step".
        monitor: name of the number that the scheduler's `step` takes, such as "val_loss" for `ReduceLROnPlateau`; None:
            `step` takes no argument.

    Raises:
        InvalidArgument: `by` is another word.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        >>> scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        >>> history = hk.train.fit(
        ...     model, (torch.ones(4, 2), torch.ones(4, 1)), loss=torch.nn.functional.mse_loss, optimizer=optimizer,
        ...     epochs=2, callbacks=[hk.train.LearningRate(scheduler)], show_progress=False
        ... )
        >>> optimizer.param_groups[0]["lr"]
        0.25
    """

    def __init__(self, scheduler: object, by: str = "epoch", monitor: str | None = None) -> None:
        if by not in ("epoch", "step"):
            raise InvalidArgument(f'by must be "epoch" or "step", not {by!r}')
        self._scheduler, self._by, self._monitor = scheduler, by, monitor

    def on_batch_end(self, trainer: TrainerView, step: int, logs: Mapping[str, float]) -> None:
        if self._by == "step":
            self._step(logs)

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, Any]) -> None:
        if self._by == "epoch":
            self._step(logs)

    def state(self) -> Mapping[str, Any]:
        state: Mapping[str, Any] = self._scheduler.state_dict()  # type: ignore[attr-defined]
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        self._scheduler.load_state_dict(dict(state))  # type: ignore[attr-defined]

    def _step(self, logs: Mapping[str, float]) -> None:
        arguments = [] if self._monitor is None else [_watched(self._monitor, logs)]
        self._scheduler.step(*arguments)  # type: ignore[attr-defined]


def _watched(name: str, logs: Mapping[str, float]) -> float:
    check_known("value to watch", name, logs)
    return logs[name]
