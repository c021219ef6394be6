"""Keras callbacks in a training of several ranks."""

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

_OF_MODEL = ("stop_training", "stop_evaluating", "_initial_epoch")  # what a callback tells a training by


class KerasCallbacks(Callback):
    """Runs Keras callbacks on rank 0, and tells the other ranks what they changed: the learning rate and other numbers
    that layers and the optimizer are set to, `model.stop_training`, numbers in `logs`, and variables. At the end every
    rank has the whole model, callbacks or none.

    The whole model is there at the end of an epoch. Within one, where ranks have parts, all of them are sent there as
    soon as a callback looks at a variable that is not of rank 0's part: one that sets the learning rate costs nothing.

    Args:
        callbacks: of the user.
        model: that is trained.
        update: of its optimizer.
        meter: of its metrics, which a callback that evaluates leaves as they are.
        parameters: epochs, steps and the like, as Keras has them.
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
        self._given = list(callbacks)
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
        """Make the list, on rank 0, and hand it on; go on where a callback has put the model back to."""
        self._model.stop_training = False

        def make() -> None:
            # Behind the others, as in Keras: a callback finds the epochs before this one there.
            self._model.history = history = keras.callbacks.History()
            self._list = keras.callbacks.CallbackList(
                [*self._given, history, self._last],
                add_history=False,
                add_progbar=False,
                model=self._model,
                **self._parameters,
            )

        if self._given:
            on_rank_0(trainer.comm, make)
        self._hand_on(trainer, "on_train_begin", has_whole=True)
        trainer.stop_training = False  # Keras looks at that behind a batch, so one is trained
        trainer.epoch = self._model._initial_epoch or trainer.epoch
        trainer.executor.num_steps = self._first_step = self._update.num_steps

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
            running = trainer.means_so_far(trainer.totals)
            self._hand_on(trainer, "on_train_batch_end", trainer.num_batches - 1, running)
        trainer.is_stopping = trainer.stop_training = trainer.stop_training or bool(self._model.stop_training)

    def on_test_begin(self, trainer: Trainer) -> None:
        """Hand it on, with the whole model."""
        if self._given:
            self._model.stop_evaluating = False
        if self._at_test_begin:
            self._collect(trainer)
            self._hand_on(trainer, "on_test_begin", has_whole=True)

    def on_test_batch_begin(self, trainer: Trainer, number: int) -> None:
        """Hand it on."""
        if self._at_test_batch_begin:
            self._hand_on(trainer, "on_test_batch_begin", number)

    def on_test_batch_end(self, trainer: Trainer, number: int, totals: Mapping[str, tuple[float, float]]) -> None:
        """Hand it on."""
        if self._at_test_batch_end:
            self._hand_on(trainer, "on_test_batch_end", number, trainer.means_so_far(totals))
        trainer.stop_evaluating = bool(self._given and self._model.stop_evaluating)

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
        if trainer.num_steps > self._first_step:  # otherwise there are no averages yet
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

        def call(call_all_ranks: CallAllRanks) -> tuple[dict[str, Any], list[Setting], list[int], dict[str, Any]]:
            self._settings.remember()
            versions = self._versions()

            def ask_for_whole() -> None:
                before = self._versions()
                call_all_ranks()
                pairs = zip(versions, before, self._versions(), strict=True)
                versions[:] = [now if then == first else first for first, then, now in pairs]  # but what was written

            absent = [] if has_whole else self._absent(trainer)
            with self._meter.kept(), watching(absent, ask_for_whole):
                getattr(self._list, name)(*arguments)
            of_model = {key: getattr(self._model, key, False) for key in _OF_MODEL}
            settings, written = self._settings.changed(), self._written(versions)
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

    def _absent(self, trainer: Trainer) -> list[torch.Tensor]:
        """The variables that rank 0 has not as they are now, in the middle of an epoch."""
        executor, own = trainer.executor, set()
        for number in executor.trained_stages():
            stage = executor.split.stages[number]
            assert isinstance(stage, KerasStage)
            trained = {id(value) for value in stage.parameters().values()}
            is_only = len(set(executor.holders(number))) == 1  # otherwise running statistics differ
            own |= {id(each) for each in stage.variables if is_only or id(each.value) in trained}
        everywhere = self._update.known_everywhere()
        of_model = [each for each in self._model.variables if id(each) not in own]
        of_optimizer = (
            [each for each in self._update.optimizer.variables if id(each) not in everywhere] if of_model else []
        )
        return [each.value for each in (*of_model, *of_optimizer)]

    def _written(self, versions: list[tuple[int, int]]) -> list[int]:
        """Places of the variables that have been written to since.

        Raises:
            InvalidModel: the other ranks could not be given them.
        """
        now = self._versions()
        if len(now) != len(versions):
            raise InvalidModel("a callback has given the model or the optimizer other variables than it had")
        return [place for place, version in enumerate(now) if version != versions[place]]

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
        """Return what was added to the last of them, or set otherwise, if it is logs."""
        given = arguments[-1] if arguments and isinstance(arguments[-1], dict) else self._logs
        added = {name: value for name, value in self._logs.items() if name not in given or value is not given[name]}
        self._logs = {}
        return added
