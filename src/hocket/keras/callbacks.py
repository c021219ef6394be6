"""Keras callbacks in a training of several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import torch

from hocket.errors import InvalidArgument, InvalidModel
from hocket.keras.settings import Setting, Settings
from hocket.keras.update import KerasUpdate
from hocket.train import Callback, Trainer
from hocket.train.on_rank_0 import on_rank_0


class KerasCallbacks(Callback):
    """Runs Keras callbacks on rank 0, with the whole model as it is at the end of an epoch, and tells the other ranks
    what they changed: the learning rate and other numbers that layers and the optimizer are set to,
    `model.stop_training`, numbers in `logs`, and variables. At the end every rank has the whole model, callbacks or
    none.

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
        self._at_batch_end = self._has("on_train_batch_end", "on_batch_end")
        self._at_epoch_begin = self._has("on_epoch_begin")
        self._at_test_begin, self._at_test_end = self._has("on_test_begin"), self._has("on_test_end")
        self._list: keras.callbacks.CallbackList | None = None
        self._model, self._update, self._parameters = model, update, parameters
        self._settings = Settings(model)
        self._last = _Last()
        self._logs: dict[str, Any] = {}

    def on_train_begin(self, trainer: Trainer) -> None:
        """Make the list, on rank 0, and hand it on; go on where a callback has put the model back to."""
        self._model.stop_training = False

        def make() -> None:
            self._list = keras.callbacks.CallbackList(
                [*self._given, self._last], add_history=False, add_progbar=False, model=self._model, **self._parameters
            )

        if self._given:
            on_rank_0(trainer.comm, make)
        self._hand_on(trainer, "on_train_begin", has_whole=True)
        trainer.epoch = self._model._initial_epoch or trainer.epoch
        trainer.executor.num_steps = self._update.num_steps

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Hand it on."""
        if self._at_epoch_begin:
            self._hand_on(trainer, "on_epoch_begin", epoch, has_whole=True)

    def on_batch_begin(self, trainer: Trainer, step: int) -> None:
        """Hand it on."""
        if self._at_batch_begin:
            self._hand_on(trainer, "on_train_batch_begin", trainer.num_batches)

    def on_batch_end(self, trainer: Trainer, step: int, logs: Mapping[str, float]) -> None:
        """Hand it on."""
        if self._at_batch_end:
            self._hand_on(trainer, "on_train_batch_end", trainer.num_batches - 1, dict(logs))
        trainer.is_stopping = trainer.stop_training

    def on_test_begin(self, trainer: Trainer) -> None:
        """Hand it on, with the whole model."""
        if self._at_test_begin:
            self._collect(trainer)
            self._hand_on(trainer, "on_test_begin", has_whole=True)

    def on_test_end(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Hand it on, with the whole model."""
        if self._at_test_end:
            self._collect(trainer)
            self._hand_on(trainer, "on_test_end", dict(logs), has_whole=True)

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: dict[str, Any]) -> None:
        """Hand it on, with the whole model."""
        if self._given:
            self._collect(trainer)
            logs.update(self._hand_on(trainer, "on_epoch_end", epoch, dict(logs), has_whole=True))
        self._logs = logs

    def on_train_end(self, trainer: Trainer) -> None:
        """Hand it on, with the whole model as it stays."""
        self._collect(trainer)
        self._update.finalize()
        self._hand_on(trainer, "on_train_end", dict(self._logs), has_whole=True)

    def _has(self, *names: str) -> bool:
        """Whether a callback does something then."""
        plain = keras.callbacks.Callback
        return any(
            name in vars(each) or getattr(type(each), name) is not getattr(plain, name)
            for each in self._given
            for name in names
        )

    def _collect(self, trainer: Trainer) -> None:
        trainer.collect()
        self._update.collect()

    def _hand_on(self, trainer: Trainer, name: str, *arguments: Any, has_whole: bool = False) -> dict[str, Any]:
        """Call the callbacks on rank 0, and give the other ranks what they changed, or what they raised.

        Returns:
            What they added to the logs of an epoch, if they were given such.
        """
        if not self._given:
            return {}
        has_whole = has_whole or len(trainer.executor.trained_stages()) == trainer.executor.split.num_stages

        def call() -> tuple[dict[str, Any], list[Setting], list[int], dict[str, Any]]:
            self._settings.remember()
            versions = self._versions()
            getattr(self._list, name)(*arguments)
            of_model = {key: getattr(self._model, key) for key in ("stop_training", "_initial_epoch")}
            settings, written = self._settings.changed(), self._written(versions, has_whole)
            return of_model, settings, written, self._last.added_to(*arguments)

        of_model, settings, changed, added = on_rank_0(trainer.comm, call)
        for key, value in of_model.items():
            setattr(self._model, key, value)
        trainer.stop_training = bool(self._model.stop_training)
        if trainer.comm.rank != 0:
            self._settings.set(settings)
        variables = self._variables()
        with torch.no_grad():
            for place in changed:
                trainer.comm.broadcast(variables[place].value.detach(), 0)
        return added

    def _written(self, versions: list[tuple[int, int]], has_whole: bool) -> list[int]:
        """Places of the variables that have been written to since.

        Raises:
            InvalidModel: the other ranks could not be given them.
        """
        variables, now = self._variables(), self._versions()
        if len(now) != len(versions):
            raise InvalidModel("a callback has given the model or the optimizer other variables than it had")
        places = [place for place, version in enumerate(now) if version != versions[place]]
        optimizer = self._update.optimizer
        known = {id(optimizer._learning_rate), id(optimizer._iterations)}  # on every rank, at any time
        partial = [variables[place] for place in places if id(variables[place]) not in known]
        if partial and not has_whole:
            raise InvalidModel(
                f"a callback has written to {partial[0].path!r} within an epoch, when a rank has a part of the model "
                "alone: do so at the end of epochs"
            )
        return places

    def _variables(self) -> list[Any]:
        return [*self._model.variables, *self._update.optimizer.variables]

    def _versions(self) -> list[tuple[int, int]]:
        """What tells whether somebody has written to variables, or set their values."""
        return [(id(each._value), each._value._version) for each in self._variables()]


class _Last(keras.callbacks.Callback):  # type: ignore[misc]
    """Sees what the callbacks before it have added to the logs of an epoch, as the history does in Keras."""

    def __init__(self) -> None:
        super().__init__()
        self._logs: dict[str, Any] = {}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._logs = dict(logs or {})

    def added_to(self, *arguments: Any) -> dict[str, Any]:
        """Return what was added to the last of them, if it is logs."""
        given = arguments[-1] if arguments and isinstance(arguments[-1], dict) else self._logs
        added = {name: value for name, value in self._logs.items() if name not in given}
        self._logs = {}
        return added
