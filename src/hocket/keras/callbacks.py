"""Keras callbacks in a training on several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import torch

from hocket.errors import InvalidModel
from hocket.keras.meter import KerasMeter
from hocket.keras.settings import Setting, SharedSettings
from hocket.keras.stage import KerasStage
from hocket.keras.update import KerasUpdate
from hocket.keras.watching import watching
from hocket.train import Callback, Trainer
from hocket.train.on_rank_0 import CallAllRanks, on_rank_0, on_rank_0_with_calls

_OF_MODEL = ("stop_training", "stop_evaluating", "_initial_epoch")  # attributes by which a callback controls a training


class KerasCallbacks(Callback):
    """Runs Keras callbacks on rank 0, and sends their changes to the other ranks: settings of layers and of the
    optimizer, such as the learning rate, `model.stop_training`, numbers in `logs`, and variables. At the end every rank
    has the whole model, also without callbacks.

    At the end of an epoch rank 0 has the whole model. Within an epoch, the other ranks send their parts when a callback
    first accesses a variable outside of rank 0's part. So a callback that sets the learning rate costs nothing.

    Args:
        callbacks: the user's callbacks.
        model: the model that is trained.
        update: update by the model's optimizer.
        meter: statistics of the model's metrics; a callback that evaluates the model does not change them.
        parameters: parameters of Keras callbacks, such as epochs and steps.
    """

    sees_parts = True  # as in Keras

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        model: Any,
        update: KerasUpdate,
        meter: KerasMeter,
        parameters: dict[str, Any],
    ) -> None:
        self._callbacks = list(callbacks)
        self._at_batch_begin = self._has("on_train_batch_begin", "on_batch_begin")
        self._at_batch_end = self._has("on_train_batch_end", "on_batch_end")
        self._at_epoch_begin = self._has("on_epoch_begin")
        self._at_test_begin, self._at_test_end = self._has("on_test_begin"), self._has("on_test_end")
        self._at_test_batch_begin = self._has("on_test_batch_begin")
        self._at_test_batch_end = self._has("on_test_batch_end")
        self._list: keras.callbacks.CallbackList | None = None
        self._model, self._update, self._meter, self._parameters = model, update, meter, parameters
        self._settings = SharedSettings(model)
        self._first_step = 0
        self._last = _Last()
        self._logs: dict[str, Any] = {}

    def on_train_begin(self, trainer: Trainer) -> None:
        """Make the list of callbacks on rank 0, and call it; continue from the epoch that a callback restored."""
        self._model.stop_training = False

        def make() -> None:
            # After the others, as in Keras: in a callback, the history has the epochs before this one.
            self._model.history = history = keras.callbacks.History()
            self._list = keras.callbacks.CallbackList(
                [*self._callbacks, history, self._last],
                add_history=False,
                add_progbar=False,
                model=self._model,
                **self._parameters,
            )

        if self._callbacks:
            on_rank_0(trainer.comm, make)
        self._call_all(trainer, "on_train_begin", has_whole=True)
        trainer.stop_training = False  # Keras reads it after a batch, so one batch is trained in any case
        trainer.epoch = self._model._initial_epoch or trainer.epoch
        trainer.executor.num_steps = self._first_step = self._update.num_steps

    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        """Call the callbacks."""
        if self._at_epoch_begin:
            self._call_all(trainer, "on_epoch_begin", epoch, has_whole=True)

    def on_batch_begin(self, trainer: Trainer, step: int) -> None:
        """Call the callbacks."""
        if self._at_batch_begin:
            self._call_all(trainer, "on_train_batch_begin", trainer.num_batches)

    def on_batch_end(self, trainer: Trainer, step: int, logs: Mapping[str, float]) -> None:
        """Call the callbacks."""
        if self._at_batch_end:
            running = trainer.means_so_far(trainer.totals)
            self._call_all(trainer, "on_train_batch_end", trainer.num_batches - 1, running)
        trainer.is_stopping = trainer.stop_training = trainer.stop_training or bool(self._model.stop_training)

    def on_test_begin(self, trainer: Trainer) -> None:
        """Call the callbacks, with the whole model."""
        if self._callbacks:
            self._model.stop_evaluating = False
        if self._at_test_begin:
            self._collect(trainer)
            self._call_all(trainer, "on_test_begin", has_whole=True)

    def on_test_batch_begin(self, trainer: Trainer, number: int) -> None:
        """Call the callbacks."""
        if self._at_test_batch_begin:
            self._call_all(trainer, "on_test_batch_begin", number)

    def on_test_batch_end(self, trainer: Trainer, number: int, totals: Mapping[str, tuple[float, float]]) -> None:
        """Call the callbacks."""
        if self._at_test_batch_end:
            self._call_all(trainer, "on_test_batch_end", number, trainer.means_so_far(totals))
        trainer.stop_evaluating = bool(self._callbacks and self._model.stop_evaluating)

    def on_test_end(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Call the callbacks, with the whole model."""
        if self._at_test_end:
            self._collect(trainer)
            self._call_all(trainer, "on_test_end", dict(logs), has_whole=True)

    def on_epoch_end(self, trainer: Trainer, epoch: int, logs: dict[str, Any]) -> None:
        """Call the callbacks, with the whole model."""
        if self._callbacks:
            self._collect(trainer)
            logs.update(self._call_all(trainer, "on_epoch_end", epoch, dict(logs), has_whole=True))
        self._logs = logs

    def on_train_end(self, trainer: Trainer) -> None:
        """Call the callbacks, with the final whole model."""
        self._update.end()
        trainer.collect()
        if trainer.num_steps > self._first_step:  # without a step the optimizer has no averages yet
            self._update.finalize()
        self._call_all(trainer, "on_train_end", dict(self._logs), has_whole=True)

    def _has(self, *names: str) -> bool:
        """Return whether a callback overrides one of these methods."""
        plain = keras.callbacks.Callback
        return any(
            name in vars(each) or getattr(type(each), name) is not getattr(plain, name)
            for each in self._callbacks
            for name in names
        )

    def _collect(self, trainer: Trainer) -> None:
        self._update.collect()
        trainer.collect()

    def _call_all(self, trainer: Trainer, name: str, *arguments: Any, has_whole: bool = False) -> dict[str, Any]:
        """Call a method of all callbacks on rank 0, and send their changes, or their error, to the other ranks.

        Args:
            trainer: the trainer.
            name: name of the method.
            arguments: its arguments.
            has_whole: whether rank 0 has the whole model.

        Returns:
            The numbers that the callbacks added to the logs of an epoch.
        """
        if not self._callbacks:
            return {}

        def call(call_all_ranks: CallAllRanks) -> tuple[dict[str, Any], list[Setting], list[int], dict[str, Any]]:
            self._settings.remember()
            versions = self._versions()

            def collect_whole() -> None:
                before = self._versions()
                call_all_ranks()
                pairs = zip(versions, before, self._versions(), strict=True)
                # Only variables that a callback has not written to before count as unchanged after this.
                versions[:] = [now if then == first else first for first, then, now in pairs]

            stale = [] if has_whole else self._stale(trainer)
            with self._meter.kept(), watching(stale, collect_whole):
                getattr(self._list, name)(*arguments)
            of_model = {key: getattr(self._model, key, False) for key in _OF_MODEL}
            settings, written = self._settings.changed(), self._written(versions)
            variables = self._variables()
            self._update.check_written(variables[place] for place in written)
            return of_model, settings, written, self._last.added_to(*arguments)

        of_model, settings, changed, added = on_rank_0_with_calls(trainer.comm, call, lambda: self._collect(trainer))
        for key, value in of_model.items():
            setattr(self._model, key, value)
        trainer.stop_training = bool(self._model.stop_training)
        if trainer.comm.rank != 0:
            self._settings.set(settings)
        variables = self._variables()
        with torch.no_grad():
            for place in changed:
                trainer.comm.broadcast(variables[place].value.detach(), 0)
        self._update.read_scale()
        return added

    def _stale(self, trainer: Trainer) -> list[torch.Tensor]:
        """Return the variables whose present values rank 0 lacks within an epoch."""
        executor, own = trainer.executor, set()
        for number in executor.trained_stages():
            stage = executor.split.stages[number]
            assert isinstance(stage, KerasStage)
            trained = {id(value) for value in stage.parameters().values()}
            is_only = len(set(executor.holders(number))) == 1  # running statistics differ between several holders
            own |= {id(each) for each in stage.variables if is_only or id(each.value) in trained}
        everywhere = self._update.known_everywhere()
        of_model = [each for each in self._model.variables if id(each) not in own]
        of_optimizer = (
            [each for each in self._update.optimizer.variables if id(each) not in everywhere]
            if of_model or self._update.is_elsewhere
            else []
        )
        return [each.value for each in (*of_model, *of_optimizer)]

    def _written(self, versions: list[tuple[int, int]]) -> list[int]:
        """Return the indices of the variables that were written to since `versions` was taken.

        Raises:
            InvalidModel: the model or the optimizer has got other variables.
        """
        now = self._versions()
        if len(now) != len(versions):
            raise InvalidModel(
                f"a callback has changed the number of variables from {len(versions)} to {len(now)}: the model and the "
                "optimizer must keep their variables during a training"
            )
        return [place for place, version in enumerate(now) if version != versions[place]]

    def _variables(self) -> list[Any]:
        return [*self._model.variables, *self._update.optimizer.variables]

    def _versions(self) -> list[tuple[int, int]]:
        """Return a key for each variable, which changes when the variable is written to or its value is replaced."""
        return [(id(each._value), each._value._version) for each in self._variables()]


class _Last(keras.callbacks.Callback):  # type: ignore[misc]
    """The last callback, which records what the other callbacks add to the logs of an epoch, as Keras' history does."""

    def __init__(self) -> None:
        super().__init__()
        self._logs: dict[str, Any] = {}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._logs = dict(logs or {})

    def added_to(self, *arguments: Any) -> dict[str, Any]:
        """Return the items of the recorded logs that were added to, or changed in, the last argument, if it is logs."""
        original = arguments[-1] if arguments and isinstance(arguments[-1], dict) else self._logs
        added = {
            name: value for name, value in self._logs.items() if name not in original or value is not original[name]
        }
        self._logs = {}
        return added
