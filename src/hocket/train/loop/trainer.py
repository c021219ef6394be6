"""The trainer: training steps, evaluation, prediction, and files of the whole training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from hocket import _native
from hocket.collectives.compressed.kept import KEPT, KeptOfTensors
from hocket.comm.unseen import warn_at_the_users_line
from hocket.errors import InvalidArgument
from hocket.train.data.batches import Batch, Source
from hocket.train.data.micro_batches import Parts, Weigh, micro_batches_of
from hocket.train.loop.callback import Callback, named_states
from hocket.train.loop.checkpoint_file import TrainingState, read_checkpoint, write_checkpoint
from hocket.train.loop.loss_scaling import LossScaling
from hocket.train.loop.metrics import Meter, Metric
from hocket.train.loop.update import Update, clip_gradients
from hocket.train.on_rank_0 import as_picklable, on_rank_0
from hocket.train.run.executor import PipelineExecutor, StepResult
from hocket.train.run.outputs import joined_outputs
from hocket.train.run.regions import OPTIMIZER
from hocket.train.run.whole_model import collect, merge_buffers


class Trainer:
    """Trains a split model on all ranks of a communicator; all ranks call its methods together.

    Args:
        executor: executor of the schedule.
        update: update of the parameters.
        metrics: functions (output, target) -> number, by name; the numbers are means over samples.
        weigh: returns, for a target, the number of items that the mean in the loss is taken over; None: the number of
            samples.
        loss_is_mean: True: the loss is a mean over items, and the loss of a batch is the mean of its micro-batches'
            losses, weighted by their items; False: the loss of a batch is their sum.
        max_gradient_norm: gradients with a larger norm are scaled down to this norm; None: never.
        scaling: scaling of the loss; the executor's loss must be `scaling.scaled(loss)`.
        meter: statistics of all outputs of an epoch, in addition to metrics.
        callbacks: see `Callback`.
        counts_samples: average the losses of several batches by samples, as Keras does, even if the loss of a batch is
            a mean over other items.
        check_first: called by all ranks with the first batch before it is trained on; must raise on every rank or none.

    Attributes:
        epoch: number of trained epochs, including those before a resumption.
        num_batches: number of trained batches of the present epoch.
        totals: for the present epoch, by name: the weighted sum of a number, and its weight.
        stop_training: set on any rank, ends the training after the epoch.
        is_stopping: set on all ranks, ends the training after the step.
        stop_evaluating: set on all ranks, ends an evaluation after the batch.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
        >>> split = hk.train.graph_of(model).split([0, 1, 2])
        >>> schedule = hk.pipeline.build("1f1b", num_ranks=2, num_micro_batches=2)
        >>> with hk.train.PipelineExecutor(schedule, split, comm, torch.nn.functional.mse_loss) as executor:
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...     trainer = hk.train.Trainer(executor, hk.train.TorchUpdate(optimizer, model[comm.rank].parameters()))
        ...     logs = trainer.train_step(hk.train.Batch(torch.ones(4, 2), torch.ones(4, 1), num_samples=4))
        ...     trainer.save("training.pt")
        >>> list(logs), trainer.num_steps, sorted(torch.load("training.pt")["model"])
        (['loss'], 1, ['0.bias', '0.weight', '1.bias', '1.weight'])
    """

    def __init__(
        self,
        executor: PipelineExecutor,
        update: Update,
        *,
        metrics: Mapping[str, Metric] | None = None,
        weigh: Weigh | None = None,
        loss_is_mean: bool = True,
        max_gradient_norm: float | None = None,
        scaling: LossScaling | None = None,
        meter: Meter | None = None,
        callbacks: Iterable[Callback] = (),
        counts_samples: bool = False,
        check_first: Callable[[Trainer, Batch], None] | None = None,
    ) -> None:
        self.executor = executor
        self.update = update
        self.comm = executor.comm
        self.callbacks = list(callbacks)
        self.stop_training = self.is_stopping = self.stop_evaluating = False
        self.epoch = self.num_batches = 0
        self.totals: dict[str, tuple[float, float]] = {}
        self._counts_items = loss_is_mean and not counts_samples
        self._metrics = dict(metrics or {})
        self._weigh = weigh
        self._loss_is_mean = loss_is_mean
        self._max_gradient_norm = max_gradient_norm
        self._scaling = scaling
        self.meter = meter
        self._check_first = check_first
        self._needs_outputs = bool(self._metrics) or meter is not None

    @property
    def num_steps(self) -> int:
        """Number of steps that have run."""
        return self.executor.num_steps

    def train_step(self, batch: Batch) -> dict[str, float]:
        """Train on a batch; return its loss and metrics, equal on all ranks.

        Raises:
            Exception: a metric raised it on some rank; raised on every rank. See also `PipelineExecutor.step`.
        """
        if self._check_first is not None:
            self._check_first(self, batch)
            self._check_first = None
        parts = self.cut(batch)
        number = self.executor.num_steps
        result = self.executor.step(parts.micro_batches, keeps_outputs=self._needs_outputs)
        if self._scaling is not None:
            self._scaling.unscale(self.executor)
        if self._scaling is None or not self._scaling.overflows:
            if self._max_gradient_norm is not None:
                clip_gradients(self.executor, self._max_gradient_norm)
            with _native.region(OPTIMIZER, number):
                self.update.step(has_weight=any(parts.weights))
        logs = self._logs(result, parts)
        self._add(self.totals, logs, batch, parts)
        return logs

    def evaluate(self, source: Source, callbacks: Sequence[Callback] = ()) -> dict[str, float]:
        """Return loss and metrics over the batches of a source, without training.

        Args:
            source: source of the batches.
            callbacks: callbacks whose ``on_test_...`` methods are called.

        Raises:
            InvalidArgument: the source has no samples, or no items for a mean.
        """
        for each in callbacks:
            each.on_test_begin(self)
        merge_buffers(self.executor)
        if self.meter is not None:
            self.meter.begin()
        self.stop_evaluating = False
        totals: dict[str, tuple[float, float]] = {}
        for number, batch in enumerate(source.batches(0)):
            for each in callbacks:
                each.on_test_batch_begin(self, number)
            parts = self.cut(batch)
            result = self.executor.forward(parts.micro_batches, keeps_outputs=self._needs_outputs, with_losses=True)
            self._add(totals, self._logs(result, parts), batch, parts)
            for each in callbacks:
                each.on_test_batch_end(self, number, totals)
            if self.stop_evaluating:
                break
        if not totals or not all(size for _, size in totals.values()):
            raise InvalidArgument("the data for the evaluation have no samples; they must have 1 or more")
        logs = self.means_so_far(totals)
        for each in callbacks:
            each.on_test_end(self, logs)
        return logs

    def means_so_far(self, totals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Return the means of `totals`, and the present results of the meter; called by all ranks."""
        return means_of(totals) | (self.meter.result() if self.meter is not None else {})

    def predict(self, source: Source) -> Any:
        """Return the model's outputs for all samples of a source, in order, on every rank."""
        merge_buffers(self.executor)
        outputs = []
        for batch in source.batches(0):
            own = self.executor.forward(self.cut(batch).micro_batches).outputs
            first = self.executor.first_micro_batch
            parts: dict[int, Any] = {}
            for each in self.comm.all_gather_object({first + number: output for number, output in own.items()}):
                parts.update(each)
            joined = joined_outputs([parts[number] for number in sorted(parts)])
            outputs.append(pytree.tree_map(lambda leaf, size=batch.num_samples: leaf[:size], joined))
        return joined_outputs(outputs)

    def collect(self) -> None:
        """Send the trained parameters and buffers to every rank's model."""
        collect(self.executor)

    def save(self, path: str | Path) -> None:
        """Save the whole training to one file, which does not depend on the split and appears when it is complete.

        `torch.load` reads the file: "model" is the state dict of the unsplit model, "optimizer" that of its optimizer.

        Raises:
            OSError: the file cannot be written; raised on every rank.
        """
        self.collect()
        for each in self.callbacks:
            each.on_save(self)
        states = self.comm.gather_object(self.update.state(), 0)
        kept = self.comm.gather_object(self.executor.kept_gradients(), 0) or []

        def write() -> None:
            state = TrainingState(
                self.executor.split.model.state_dict(),
                self.update.merge(states or []),
                {name: dict(state) for name, (_, state) in named_states(self.callbacks).items()},
                self.epoch,
                self.num_batches,
                self.totals,
                self.num_steps,
                _saved(kept),
            )
            write_checkpoint(state, Path(path))

        on_rank_0(self.comm, write)

    def load(self, path: str | Path) -> None:
        """Load a training that `save` wrote, under this split or another one, to continue it.

        Raises:
            OSError: the file cannot be read; raised on every rank.
            InvalidArgument: it is not a hocket checkpoint, or is of another model, optimizer or callbacks.
        """
        model, named = self.executor.split.model, named_states(self.callbacks)
        state = on_rank_0(self.comm, lambda: read_checkpoint(Path(path), model.state_dict(), named))
        try:
            for name, (callback, _) in named.items():
                callback.load(state.callbacks[name])
            self.update.load(state.optimizer)
        except (ValueError, KeyError, IndexError) as error:
            raise InvalidArgument(f"{path} is of another optimizer or other callbacks: {error}") from error
        model.load_state_dict(state.model)
        self.epoch, self.num_batches, self.totals = state.epoch, state.num_batches, dict(state.totals)
        self.executor.num_steps = state.num_steps
        arrays = {what: {name: each.numpy().copy() for name, each in state.kept.get(what, {}).items()} for what in KEPT}
        kept = KeptOfTensors(state.kept.get("num_steps", 0), **arrays)
        self.executor.keep_gradients(kept)
        of_ranks = self.comm.all_gather_object({*kept.residuals})
        if self.comm.rank == 0 and (left := set.intersection(*of_ranks)):
            warn_at_the_users_line(
                f"{path} has residuals of compressed gradients of {len(left)} parameters, such as {min(left)!r}, which "
                "are not added here: nothing compresses these gradients"
            )

    def cut(self, batch: Batch) -> Parts:
        """Cut a batch into the micro-batches of this replica."""
        executor = self.executor
        return micro_batches_of(
            batch,
            executor.split.batch_inputs,
            executor.replica,
            executor.num_replicas,
            executor.schedule.num_micro_batches,
            self._weigh,
            self._loss_is_mean,
        )

    def _logs(self, result: StepResult, parts: Parts) -> dict[str, float]:
        """Return loss and metrics of the batch: weighted values of all micro-batches, summed in order on every rank."""
        executor = self.executor
        names = ["loss", *self._metrics]
        values = torch.zeros(1 + len(names), executor.num_micro_batches, dtype=torch.float64)
        first = executor.first_micro_batch
        for number, loss in result.losses.items():
            values[0, first + number] += float(loss) * parts.weights[first + number]
        for (_, number), loss in result.extra_losses.items():
            values[0, first + number] += float(loss) * parts.shares[first + number]
        problem = None
        gathered = self.meter.gather(result.outputs, parts) if self.meter is not None else None
        try:
            self._measure(result, parts, values[1:-1])
            if self.meter is not None:
                self.meter.update(gathered)
        except Exception as error:  # a metric may raise anything; the other ranks must not wait for this one
            problem = as_picklable(error)
            values[-1] = 1
        self.comm.all_reduce(values, timeout=executor.timeout_s)
        if values[-1].any():
            raise next(each for each in self.comm.all_gather_object(problem) if each is not None)
        return dict(zip(names, values[:-1].cumsum(1)[:, -1].tolist(), strict=True))

    def _add(
        self, totals: dict[str, tuple[float, float]], logs: Mapping[str, float], batch: Batch, parts: Parts
    ) -> None:
        for name, value in logs.items():
            size = parts.num_items if name == "loss" and self._counts_items else batch.num_samples
            total, whole = totals.get(name, (0.0, 0.0))
            totals[name] = total + value * size, whole + size

    def _measure(self, result: StepResult, parts: Parts, values: torch.Tensor) -> None:
        """Write the weighted metrics of this rank's micro-batches into `values`, of shape (metrics, micro-batches)."""
        first = self.executor.first_micro_batch
        for number, output in sorted(result.outputs.items()):
            target, share = parts.micro_batches[number].target, parts.shares[first + number]
            if share:
                for place, metric in enumerate(self._metrics.values()):
                    values[place, first + number] = float(metric(output, target)) * share


def _saved(of_ranks: Iterable[KeptOfTensors]) -> dict[str, Any]:
    """Return what engines of all ranks keep of gradients as tensors; empty if none of them compresses."""
    merged = KeptOfTensors()
    for each in of_ranks:
        merged.add(each)
    found: dict[str, Any] = {
        what: {name: torch.from_numpy(each) for name, each in getattr(merged, what).items()} for what in KEPT
    }
    return {**found, "num_steps": merged.num_steps} if merged.num_steps else {}


def means_of(totals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return the means of pairs (weighted sum, weight), by name; nan for a weight of 0."""
    return {name: total / size if size else math.nan for name, (total, size) in totals.items()}
