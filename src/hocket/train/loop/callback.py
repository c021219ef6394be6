"""The interface of callbacks, and the part of the trainer that they use. Callbacks run on every rank, with the same
numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from hocket.comm import Communicator
from hocket.errors import InvalidType
from hocket.train.run.executor import PipelineExecutor


class TrainerView(Protocol):
    """The part of a `Trainer` that callbacks may rely on; all ranks call its methods together.

    Attributes:
        executor: executes the schedule.
        comm: communicator of all ranks.
        epoch, num_batches, totals: see `Trainer`.
        stop_training, is_stopping, stop_evaluating: set by a callback to end the training or an evaluation.

    Examples:
        >>> import torch
        >>> class StopAfter3(hk.train.Callback):
        ...     def on_batch_end(self, trainer: hk.train.TrainerView, step, logs):
        ...         trainer.is_stopping = trainer.num_steps == 3
        >>> model = torch.nn.Linear(2, 1)
        >>> history = hk.train.fit(
        ...     model, (torch.ones(8, 2), torch.ones(8, 1)), loss=torch.nn.functional.mse_loss, batch_size=1,
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[StopAfter3()], show_progress=False
        ... )
        >>> len(history.batch_losses)
        3
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
        """Number of steps that have run."""

    def means_so_far(self, totals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Return the means of the epoch so far."""

    def collect(self) -> None:
        """Send the whole model to every rank."""

    def save(self, path: str | Path) -> None:
        """Save the whole training to one file."""


class Callback:
    """Base class of callbacks; its methods do nothing.

    During the training, each rank has current values only of the parameters that it trains. `Trainer.collect`, called
    by all ranks, sends the whole model to every rank.

    The methods receive a `Trainer`; `TrainerView` lists what callbacks may rely on. The parameter is untyped here, so
    that overriding methods may name either class.

    Attributes:
        sees_parts: whether `on_epoch_end` is also called when the training ends within an epoch.

    Examples:
        >>> import torch
        >>> class ShowEpochs(hk.train.Callback):
        ...     def on_epoch_end(self, trainer, epoch, logs):
        ...         print(f"epoch {epoch}: {sorted(logs)}")
        >>> model = torch.nn.Linear(2, 1)
        >>> history = hk.train.fit(
        ...     model, (torch.ones(4, 2), torch.ones(4, 1)), loss=torch.nn.functional.mse_loss, epochs=2,
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[ShowEpochs()], show_progress=False
        ... )
        epoch 0: ['loss', 'samples_per_s']
        epoch 1: ['loss', 'samples_per_s']
    """

    sees_parts = False

    def on_train_begin(self, trainer: Any) -> None:
        """Called before the first step."""

    def on_epoch_begin(self, trainer: Any, epoch: int) -> None:
        """Called before the first step of an epoch."""

    def on_batch_begin(self, trainer: Any, step: int) -> None:
        """Called before every step, with the number of steps before it."""

    def on_batch_end(self, trainer: Any, step: int, logs: Mapping[str, float]) -> None:
        """Called after every step, with the number of steps so far."""

    def on_test_begin(self, trainer: Any) -> None:
        """Called before a validation."""

    def on_test_batch_begin(self, trainer: Any, number: int) -> None:
        """Called before every batch of a validation, with its number."""

    def on_test_batch_end(self, trainer: Any, number: int, totals: Mapping[str, tuple[float, float]]) -> None:
        """Called after every batch of a validation. `totals` has, by name, the weighted sum so far and its weight."""

    def on_test_end(self, trainer: Any, logs: Mapping[str, float]) -> None:
        """Called after a validation."""

    def on_epoch_end(self, trainer: Any, epoch: int, logs: dict[str, Any]) -> None:
        """Called after the last step of an epoch and its validation. May add numbers to `logs`, equal on all ranks."""

    def on_save(self, trainer: Any) -> None:
        """Called before the training is saved; every rank has the whole model."""

    def on_train_end(self, trainer: Any) -> None:
        """Called at the end."""

    def state(self) -> Mapping[str, Any]:
        """Return the state that a resumed training needs: plain data and tensors."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""


def named_states(callbacks: Iterable[Callback]) -> dict[str, tuple[Callback, Mapping[str, Any]]]:
    """Return the callbacks that have a state, and the states, by names such as "EarlyStopping 0"."""
    states: dict[str, tuple[Callback, Mapping[str, Any]]] = {}
    for each in callbacks:
        state = each.state()
        if state:
            kind = type(each).__name__
            states[f"{kind} {sum(name.startswith(f'{kind} ') for name in states)}"] = each, state
    return states


def check_callbacks(callbacks: Iterable[Any], kind: type, name: str) -> None:
    """Check that callbacks are instances of a class.

    Args:
        callbacks: to check.
        kind: the class.
        name: the name by which users import it.

    Raises:
        InvalidType: a callback is not an instance.
    """
    for each in callbacks:
        if not isinstance(each, kind):
            raise InvalidType(f"a callback must be a {name}, not {each!r}")
