"""What a callback can do in a training, and what it sees of the trainer. Callbacks run on every rank, with the same
numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from hocket.comm import Communicator
from hocket.errors import InvalidType
from hocket.train.run.executor import PipelineExecutor


class TrainerView(Protocol):
    """The part of a `Trainer` that callbacks may rely on; methods are called by all ranks alike.

    Attributes:
        executor: of the schedule.
        comm: of all ranks.
        epoch, num_batches, totals: as of `Trainer`.
        stop_training, is_stopping, stop_evaluating: set by a callback to end the training or an evaluation.
    """

    executor: PipelineExecutor
    comm: Communicator
    epoch: int
    num_batches: int
    totals: dict[str, tuple[float, float]]
    stop_training: bool
    is_stopping: bool
    stop_evaluating: bool

    @property
    def num_steps(self) -> int:
        """Steps that were taken."""

    def means_so_far(self, totals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Return the means of an epoch so far."""

    def collect(self) -> None:
        """Give every rank the whole model."""

    def save(self, path: str | Path) -> None:
        """Save the whole training to one file."""


class Callback:
    """Called at the given times; does nothing by itself. The model that was given has on each rank what that rank
    trains; `Trainer.collect`, called by all, gives them the rest.

    A method's `trainer` is a `Trainer`; `TrainerView` lists what callbacks may rely on. It is untyped here, so that
    overriding methods may name either.

    Attributes:
        sees_parts: whether the end of an epoch is also where a training ends within one, to go on there some day.
    """

    sees_parts = False

    def on_train_begin(self, trainer: Any) -> None:
        """Called before the first step."""

    def on_epoch_begin(self, trainer: Any, epoch: int) -> None:
        """Called before the first step of an epoch."""

    def on_batch_begin(self, trainer: Any, step: int) -> None:
        """Called before every step, with the number of those before it."""

    def on_batch_end(self, trainer: Any, step: int, logs: Mapping[str, float]) -> None:
        """Called after every step, with the number of steps."""

    def on_test_begin(self, trainer: Any) -> None:
        """Called before a validation."""

    def on_test_batch_begin(self, trainer: Any, number: int) -> None:
        """Called before every batch of a validation, with its number."""

    def on_test_batch_end(self, trainer: Any, number: int, totals: Mapping[str, tuple[float, float]]) -> None:
        """Called after every batch of a validation: of every number so far the sum, and over how much it is."""

    def on_test_end(self, trainer: Any, logs: Mapping[str, float]) -> None:
        """Called after a validation."""

    def on_epoch_end(self, trainer: Any, epoch: int, logs: dict[str, Any]) -> None:
        """Called after the last step of an epoch, and its validation; may add numbers, the same on every rank."""

    def on_save(self, trainer: Any) -> None:
        """Called before the training is saved, with the whole model on every rank."""

    def on_train_end(self, trainer: Any) -> None:
        """Called at the end."""

    def state(self) -> Mapping[str, Any]:
        """Return what has to be saved so that a resumed training continues: plain data and tensors."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""


def named_states(callbacks: Iterable[Callback]) -> dict[str, tuple[Callback, Mapping[str, Any]]]:
    """Return callbacks that have a state, with it, by class and number."""
    found: dict[str, tuple[Callback, Mapping[str, Any]]] = {}
    for each in callbacks:
        state = each.state()
        if state:
            kind = type(each).__name__
            found[f"{kind} {sum(name.startswith(f'{kind} ') for name in found)}"] = each, state
    return found


def check_callbacks(callbacks: Iterable[Any], kind: type, name: str) -> None:
    """Check that callbacks are instances of a class, which users import by a name.

    Raises:
        InvalidType: one is not.
    """
    for each in callbacks:
        if not isinstance(each, kind):
            raise InvalidType(f"a callback is a {name}, not {each!r}")
