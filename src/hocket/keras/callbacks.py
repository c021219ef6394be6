"""Keras callbacks in a training of several ranks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import torch

from hocket.errors import InvalidArgument
from hocket.keras.update import KerasUpdate
from hocket.train import Callback, Trainer


class KerasCallbacks(Callback):
    """Runs Keras callbacks on rank 0, with the whole model as it is at the end of an epoch, and tells the other ranks
    what they changed: the learning rate, `model.stop_training`, and weights.

    Args:
        callbacks: of the user.
        model: that is trained.
        update: of its optimizer.
        parameters: epochs, steps and the like, as Keras has them.

    Raises:
        InvalidArgument: one wants the weights in the middle of an epoch.
    """

    def __init__(
        self, callbacks: Sequence[keras.callbacks.Callback], model: Any, update: KerasUpdate, parameters: dict[str, Any]
    ) -> None:
        for each in callbacks:
            if getattr(each, "save_freq", "epoch") != "epoch":
                raise InvalidArgument(
                    f"{type(each).__name__} saves every {each.save_freq} batches; the whole model is at hand after "
                    'epochs: save_freq="epoch"'
                )
        self._given = list(callbacks)
        self._list: keras.callbacks.CallbackList | None = None
        self._model, self._update, self._parameters = model, update, parameters

    def on_train_begin(self, trainer: Trainer) -> None:
        """Make the list, on rank 0."""
        self._model.stop_training = False
        if trainer.comm.rank == 0:
            self._list = keras.callbacks.CallbackList(
                self._given, add_history=False, add_progbar=False, model=self._model, **self._parameters
            )
            self._list.on_train_begin()
        self._agree(trainer)

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Hand it on."""
        if self._list is not None:
            self._list.on_epoch_begin(epoch)
        self._agree(trainer)

    def on_batch_begin(self, trainer: Trainer, step: int) -> None:
        """Hand it on."""
        if self._list is not None:
            self._list.on_train_batch_begin(step)

    def on_batch_end(self, trainer: Trainer, step: int, logs: Mapping[str, float]) -> None:
        """Hand it on."""
        if self._list is not None:
            self._list.on_train_batch_end(step - 1, dict(logs))
        self._agree(trainer)

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Mapping[str, float]) -> None:
        """Hand it on, with the whole model."""
        trainer.collect()
        self._update.collect()
        before = self._sum()
        if self._list is not None:
            self._list.on_epoch_end(epoch, dict(logs))
        self._share_weights(trainer, before)
        self._agree(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        """Hand it on, with the whole model."""
        before = self._sum()
        if self._list is not None:
            self._list.on_train_end()
        self._share_weights(trainer, before)

    def _agree(self, trainer: Trainer) -> None:
        optimizer = self._update.optimizer
        rate = optimizer._learning_rate
        is_set = isinstance(rate, keras.Variable)
        own = (bool(self._model.stop_training), float(rate.value) if is_set else None)
        stops, value = trainer.comm.broadcast_object(own, 0)
        self._model.stop_training = trainer.stop_training = stops
        if is_set and float(rate.value) != value:
            optimizer.learning_rate = value

    def _share_weights(self, trainer: Trainer, before: int) -> None:
        """A callback may have set weights, to the best ones for example."""
        if trainer.comm.broadcast_object(self._sum() != before, 0):
            with torch.no_grad():
                for variable in self._model.variables:
                    trainer.comm.broadcast(variable.value.detach(), 0)

    def _sum(self) -> int:
        total = 0
        for variable in self._model.variables:
            total = zlib.crc32(variable.value.detach().contiguous().view(torch.uint8).numpy().tobytes(), total)
        return total
