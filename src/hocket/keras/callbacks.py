"""Keras callbacks in a training of several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import torch

from hocket.errors import InvalidArgument
from hocket.keras.update import KerasUpdate
from hocket.train import Callback, Trainer
from hocket.train.checksum import checksum
from hocket.train.on_rank_0 import on_rank_0


class KerasCallbacks(Callback):
    """Runs Keras callbacks on rank 0, with the whole model as it is at the end of an epoch, and tells the other ranks
    what they changed: the learning rate, `model.stop_training`, and between epochs weights. At the end every rank has
    the whole model, callbacks or none.

    Args:
        callbacks: of the user.
        model: that is trained.
        update: of its optimizer.
        parameters: epochs, steps and the like, as Keras has them.

    Raises:
        InvalidArgument: one wants the weights in the middle of an epoch.
    """

    sees_parts = True  # as in Keras

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
        self._at_batch_begin = self._has("on_train_batch_begin", "on_batch_begin")
        self._at_epoch_begin = self._has("on_epoch_begin")
        self._list: keras.callbacks.CallbackList | None = None
        self._model, self._update, self._parameters = model, update, parameters

    def on_train_begin(self, trainer: Trainer) -> None:
        """Make the list, on rank 0, and hand it on."""
        self._model.stop_training = False
        if trainer.comm.rank == 0 and self._given:
            self._list = keras.callbacks.CallbackList(
                self._given, add_history=False, add_progbar=False, model=self._model, **self._parameters
            )
        self._hand_on(trainer, "on_train_begin", with_weights=True)

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Hand it on."""
        self._hand_on(trainer, "on_epoch_begin", epoch, with_weights=self._at_epoch_begin)

    def on_batch_begin(self, trainer: Trainer, step: int) -> None:
        """Hand it on."""
        if self._at_batch_begin:
            self._hand_on(trainer, "on_train_batch_begin", trainer.num_batches)

    def on_batch_end(self, trainer: Trainer, step: int, logs: Mapping[str, float]) -> None:
        """Hand it on."""
        self._hand_on(trainer, "on_train_batch_end", trainer.num_batches - 1, dict(logs))
        trainer.is_stopping = trainer.stop_training

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: Mapping[str, float]) -> None:
        """Hand it on, with the whole model."""
        if self._given:
            trainer.collect()
            self._update.collect()
            self._hand_on(trainer, "on_epoch_end", epoch, dict(logs), with_weights=True)

    def on_train_end(self, trainer: Trainer) -> None:
        """Hand it on, with the whole model as it stays."""
        trainer.collect()
        self._update.collect()
        self._update.finalize()
        self._hand_on(trainer, "on_train_end", with_weights=True)

    def _has(self, *names: str) -> bool:
        """Whether a callback does something then."""
        plain = keras.callbacks.Callback
        return any(
            name in vars(each) or getattr(type(each), name) is not getattr(plain, name)
            for each in self._given
            for name in names
        )

    def _hand_on(self, trainer: Trainer, name: str, *arguments: Any, with_weights: bool = False) -> None:
        """Call the callbacks on rank 0, and give the other ranks what they changed, or what they raised."""
        if not self._given:
            return
        rate = self._update.optimizer._learning_rate
        has_value = isinstance(rate, keras.Variable)

        def call() -> tuple[bool, float | None, bool]:
            before = self._sum() if with_weights else 0
            getattr(self._list, name)(*arguments)
            value = float(rate.value) if has_value else None
            return bool(self._model.stop_training), value, with_weights and self._sum() != before

        stops, value, has_new_weights = on_rank_0(trainer.comm, call)
        self._model.stop_training = trainer.stop_training = stops
        if has_value and float(rate.value) != value:
            self._update.optimizer.learning_rate = value
        if has_new_weights:  # the best ones, for example
            with torch.no_grad():
                for variable in self._model.variables:
                    trainer.comm.broadcast(variable.value.detach(), 0)

    def _sum(self) -> int:
        total = 0
        for variable in self._model.variables:
            total = checksum(variable.value, total)
        return total
