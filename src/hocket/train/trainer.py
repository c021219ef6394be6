"""A training: steps, evaluation, and the whole of it saved and loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from hocket.errors import InvalidArgument, InvalidType
from hocket.suggestions import unknown
from hocket.train.batches import Batch, Source
from hocket.train.callbacks import Callback
from hocket.train.cutting import Parts, Weigh, micro_batches_of
from hocket.train.executor import PipelineExecutor, StepResult
from hocket.train.loss_scaling import LossScaling
from hocket.train.on_rank_0 import that_travels
from hocket.train.saving import load, save
from hocket.train.update import Update, clip_gradients
from hocket.train.whole_model import collect, merge_buffers

Metric = Callable[[Any, Any], Any]


class Meter(Protocol):
    """Adds up what is to be known about many outputs. Every method is called by all ranks."""

    def begin(self) -> None:
        """Begin anew."""

    def gather(self, outputs: Mapping[int, Any], parts: Parts) -> Any:
        """Exchange what the model gave for a batch, as far as it has to be; return what `update` is given here.

        Args:
            outputs: of micro-batches whose last stage is here, by number.
            parts: all micro-batches of the replica, and their weights in the batch.
        """

    def update(self, gathered: Any) -> None:
        """Add a batch; communicates nothing, and may raise on a rank alone."""

    def result(self) -> dict[str, float]:
        """Return the numbers of all batches so far, the same on every rank."""


class Trainer:
    """Trains a split model on all ranks of a communicator; every method is called by all ranks alike.

    Args:
        executor: of its schedule.
        update: of its parameters.
        metrics: functions (output, target) -> number, a mean over samples, by name.
        weigh: how many items the mean in the loss is over, of a target; None: samples.
        loss_is_mean: whether the loss is a mean over items, and that of a batch the mean over its micro-batches,
            weighted by their items; otherwise it is their sum.
        max_gradient_norm: gradients are scaled down to it; None: never.
        scaling: of the executor's loss, which is to be its `LossScaling.scaled`.
        meter: of what is to be known of all outputs of an epoch, beside metrics.
        callbacks: see `Callback`.
        counts_samples: whether the loss of several batches is their mean by samples, as Keras has it, also where that
            of one is a mean over something else.
        check_first: called by all ranks with the first batch that is trained on, before that; what it raises, it raises
            on every rank.

    Attributes:
        epoch: how many were trained, those before a resumption included.
        num_batches: of the epoch after these, that were trained.
        totals: of their numbers: the sum, and over how much it is.
        stop_training: set on any rank, ends the training after the epoch.
        is_stopping: set on all ranks, ends it after the step.
        stop_evaluating: set on all ranks, ends an evaluation after the batch.
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
        """Steps that were taken."""
        return self.executor.num_steps

    def train_step(self, batch: Batch) -> dict[str, float]:
        """Train on a batch; return its loss and metrics, the same on every rank.

        Raises:
            Exception: what a metric raised, on every rank; otherwise as `PipelineExecutor.step`.
        """
        if self._check_first is not None:
            self._check_first(self, batch)
            self._check_first = None
        parts = self.cut(batch)
        result = self.executor.step(parts.micro_batches, keeps_outputs=self._needs_outputs)
        if self._scaling is not None:
            self._scaling.unscale(self.executor)
        if self._scaling is None or not self._scaling.overflows:
            if self._max_gradient_norm is not None:
                clip_gradients(self.executor, self._max_gradient_norm)
            self.update.step(has_weight=any(parts.weights))
        logs = self._logs(result, parts)
        self._add(self.totals, logs, batch, parts)
        return logs

    def evaluate(self, source: Source, callbacks: Sequence[Callback] = ()) -> dict[str, float]:
        """Return loss and metrics over the batches of a source, without training on them.

        Args:
            source: of batches.
            callbacks: that are told when it begins and ends, and of every batch.

        Raises:
            InvalidArgument: there are no samples, or no items for a mean to be over.
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
            raise InvalidArgument("there are no samples to evaluate on")
        logs = self.means_so_far(totals)
        for each in callbacks:
            each.on_test_end(self, logs)
        return logs

    def means_so_far(self, totals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """Return means of sums over so much, and what the meter has so far; called by all ranks."""
        return means_of(totals) | (self.meter.result() if self.meter is not None else {})

    def predict(self, source: Source) -> Any:
        """Return what the model gives for all samples of a source, in order, on every rank."""
        merge_buffers(self.executor)
        outputs = []
        for batch in source.batches(0):
            found = self.executor.forward(self.cut(batch).micro_batches).outputs
            first = self.executor.first_micro_batch
            parts: dict[int, Any] = {}
            for each in self.comm.all_gather_object({first + number: output for number, output in found.items()}):
                parts.update(each)
            joined = joined_outputs([parts[number] for number in sorted(parts)])
            outputs.append(pytree.tree_map(lambda leaf, size=batch.num_samples: leaf[:size], joined))
        return joined_outputs(outputs)

    def collect(self) -> None:
        """Give every rank's model the parameters and buffers that were trained."""
        collect(self.executor)

    def save(self, path: str | Path) -> None:
        """Save the whole training to one file, whatever the split; it appears when it is complete.

        `torch.load` reads it: "model" is the state dict of the unsplit model, "optimizer" that of its optimizer.

        Raises:
            OSError: it cannot be written; raised on every rank.
        """
        save(self, Path(path))

    def load(self, path: str | Path) -> None:
        """Go on where a training was saved, under this split or any other.

        Raises:
            OSError: the file cannot be read; raised on every rank.
            InvalidArgument: it is no such file, or of another model, optimizer or callbacks.
        """
        load(self, Path(path))

    def cut(self, batch: Batch) -> Parts:
        """Return a batch as the micro-batches of this replica."""
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
        """Loss and metrics of all micro-batches, added up in their order on every rank."""
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
        except Exception as error:  # whatever a metric raises; the other ranks are not to wait for this one
            problem = that_travels(error)
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
        """Write every metric of every micro-batch, weighted."""
        first = self.executor.first_micro_batch
        for number, output in sorted(result.outputs.items()):
            target, share = parts.micro_batches[number].target, parts.shares[first + number]
            if share:
                for place, metric in enumerate(self._metrics.values()):
                    values[place, first + number] = float(metric(output, target)) * share


def means_of(totals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return means of sums over so much."""
    return {name: total / size if size else math.nan for name, (total, size) in totals.items()}


def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the share of right answers: the largest of the last axis is that of the target."""
    return (output.argmax(-1) == target).double().mean()


METRICS: Mapping[str, Metric] = {"accuracy": accuracy}
_TAKEN = ("loss", "samples_per_s")  # names of what is measured in any case


def _named(metric: str | Metric) -> tuple[str, Metric]:
    if not isinstance(metric, str):
        return getattr(metric, "__name__", type(metric).__name__), metric
    if metric not in METRICS:
        raise InvalidArgument(
            f"{unknown('metric', metric, METRICS)}; functions (output, target) -> number are metrics, too"
        )
    return metric, METRICS[metric]


def read_metrics(metrics: Mapping[str, Metric] | Iterable[str | Metric]) -> dict[str, Metric]:
    """Return metrics by name.

    Args:
        metrics: by name, or functions, or names of those that there are.

    Raises:
        InvalidArgument: there is none of a name, or two are of the same, or one of what is measured in any case.
        InvalidType: one cannot be called.
    """
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise InvalidType(f"metrics are several, as in metrics=[{metrics!r}]")
    pairs = list(metrics.items()) if isinstance(metrics, Mapping) else [_named(each) for each in metrics]
    found = dict(pairs)
    for name, metric in pairs:
        if not callable(metric):
            raise InvalidType(f"metric {name!r} is a function (output, target) -> number, not {metric!r}")
        if name in _TAKEN or [other for other, _ in pairs].count(name) > 1:
            raise InvalidArgument(f"several numbers would have the name {name!r}: give metrics as {{name: function}}")
    return found


def joined_outputs(parts: Sequence[Any]) -> Any:
    """Return trees of tensors as one, along their first axes; what is no tensor is that of the first."""
    leaves = [pytree.tree_leaves(part) for part in parts]
    tree = pytree.tree_structure(parts[0])
    return pytree.tree_unflatten(
        [torch.cat(each) if isinstance(each[0], torch.Tensor) else each[0] for each in zip(*leaves, strict=True)], tree
    )
