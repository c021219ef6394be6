"""A training: steps, evaluation, and the whole of it saved and loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from hocket.errors import InvalidArgument
from hocket.train.batches import Batch, Source, Weigh, micro_batches_of, padded
from hocket.train.executor import PipelineExecutor, StepResult
from hocket.train.update import Update, clip_gradients
from hocket.train.whole_model import collect, merge_buffers

Metric = Callable[[Any, Any], Any]


class Meter(Protocol):
    """Adds up what is to be known about many outputs."""

    def update(self, output: Any, target: Any) -> None:
        """Add what the model gave for a micro-batch; called where its last stage is."""

    def result(self) -> dict[str, float]:
        """Return the numbers, the same on every rank, and begin anew; called by all ranks."""


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
        meter: of what is to be known of all outputs of an epoch, beside metrics.
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
        meter: Meter | None = None,
    ) -> None:
        self.executor = executor
        self.update = update
        self.comm = executor.comm
        self.stop_training = False
        self.epoch = 0
        self._metrics = dict(metrics or {})
        self._weigh = weigh
        self._loss_is_mean = loss_is_mean
        self._max_gradient_norm = max_gradient_norm
        self.meter = meter
        self._needs_outputs = bool(self._metrics) or meter is not None

    @property
    def num_steps(self) -> int:
        """Steps that were taken."""
        return self.executor.num_steps

    def train_step(self, batch: Batch) -> dict[str, float]:
        """Train on a batch; return its loss and metrics, the same on every rank."""
        executor = self.executor
        micro_batches, weights = self._cut(batch)
        result = executor.step(micro_batches, keeps_outputs=self._needs_outputs)
        if self._max_gradient_norm is not None:
            clip_gradients(executor, self._max_gradient_norm)
        self.update.step()
        targets = [each.target for each in micro_batches]
        return self._logs(result, targets, weights)

    def evaluate(self, source: Source) -> dict[str, float]:
        """Return loss and metrics over the batches of a source, without training on them."""
        merge_buffers(self.executor)
        totals: dict[str, float] = {}
        num_samples = 0
        for batch in source.batches(0):
            whole = padded(batch, self._num_parts)
            micro_batches, weights = self._cut(whole)
            if whole is not batch:  # one sample each, and those that were added count nothing
                share = 1.0 / batch.num_samples if self._loss_is_mean else 1.0
                weights = [share if number < batch.num_samples else 0.0 for number in range(self._num_parts)]
            result = self.executor.forward(micro_batches, keeps_outputs=self._needs_outputs)
            logs = self._logs(result, [each.target for each in micro_batches], weights)
            for name, value in logs.items():
                totals[name] = totals.get(name, 0.0) + value * batch.num_samples
            num_samples += batch.num_samples
        if not num_samples:
            raise InvalidArgument("there are no samples to evaluate on")
        found = {name: value / num_samples for name, value in totals.items()}
        return found | (self.meter.result() if self.meter is not None else {})

    def predict(self, source: Source) -> Any:
        """Return what the model gives for all samples of a source, in order, on every rank."""
        merge_buffers(self.executor)
        outputs = []
        for batch in source.batches(0):
            micro_batches, _ = self._cut(padded(batch, self._num_parts))
            found = self.executor.forward(micro_batches).outputs
            first = self.executor.replica * self.executor.schedule.num_micro_batches
            parts: dict[int, Any] = {}
            for each in self.comm.all_gather_object({first + number: output for number, output in found.items()}):
                parts.update(each)
            joined = _joined([parts[number] for number in sorted(parts)])
            outputs.append(pytree.tree_map(lambda leaf, size=batch.num_samples: leaf[:size], joined))
        return _joined(outputs)

    def collect(self) -> None:
        """Give every rank's model the parameters and buffers that were trained."""
        collect(self.executor)

    def save(self, path: str | Path) -> None:
        """Save the whole training to one file, whatever the split; it appears when it is complete.

        `torch.load` reads it: "model" is the state dict of the unsplit model, "optimizer" that of its optimizer.

        Raises:
            OSError: it cannot be written; raised on every rank.
        """
        self.collect()
        states = self.comm.gather_object(self.update.state(), 0)
        problem: OSError | None = None
        if self.comm.rank == 0:
            content = {
                "model": self.executor.split.model.state_dict(),
                "optimizer": self.update.merge(states or []),
                "epoch": self.epoch,
                "num_steps": self.num_steps,
            }
            problem = _write(content, Path(path))
        problem = self.comm.broadcast_object(problem, 0)
        if problem is not None:
            raise problem

    def load(self, path: str | Path) -> None:
        """Go on where a training was saved, under this split or any other.

        Raises:
            OSError: the file cannot be read; raised on every rank.
            InvalidArgument: it is of another model.
        """
        content: Any = None
        problem: OSError | str | None = None
        if self.comm.rank == 0:
            try:
                content = torch.load(path, map_location="cpu", weights_only=True)
                problem = _find_difference(content["model"], self.executor.split.model.state_dict())
            except OSError as error:
                problem = error
        content, problem = self.comm.broadcast_object((content, problem), 0)
        if isinstance(problem, OSError):
            raise problem
        if problem is not None:
            raise InvalidArgument(f"{path} is of another model: {problem}")
        self.executor.split.model.load_state_dict(content["model"])
        self.update.load(content["optimizer"])
        self.epoch = content["epoch"]
        self.executor.num_steps = content["num_steps"]

    @property
    def _num_parts(self) -> int:
        return self.executor.num_micro_batches

    def _cut(self, batch: Batch) -> tuple[list[Any], list[float]]:
        executor = self.executor
        micro_batches, weights = micro_batches_of(
            batch,
            executor.split.batch_inputs,
            executor.replica,
            executor.num_replicas,
            executor.schedule.num_micro_batches,
            self._weigh,
            self._loss_is_mean,
        )
        return micro_batches, weights

    def _logs(self, result: StepResult, targets: Sequence[Any], weights: Sequence[float]) -> dict[str, float]:
        """Loss and metrics of all micro-batches, added up in their order on every rank."""
        executor = self.executor
        names = ["loss", *self._metrics]
        values = torch.zeros(len(names), self._num_parts, dtype=torch.float64)
        first = executor.replica * executor.schedule.num_micro_batches
        for number, loss in result.losses.items():
            values[0, first + number] += float(loss) * weights[first + number]
        for (_, number), loss in result.extra_losses.items():
            values[0, first + number] += float(loss) * weights[first + number]
        for place, metric in enumerate(self._metrics.values(), 1):
            for number, output in result.outputs.items():
                share = weights[first + number] if self._loss_is_mean else 1.0 / self._num_parts
                values[place, first + number] = float(metric(output, targets[number])) * share
        if self.meter is not None:
            for number, output in sorted(result.outputs.items()):
                if weights[first + number] > 0:
                    self.meter.update(output, targets[number])
        self.comm.all_reduce(values, timeout=executor.timeout_s)
        return dict(zip(names, values.cumsum(1)[:, -1].tolist(), strict=True))


def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the share of right answers: the largest of the last axis is that of the target."""
    return (output.argmax(-1) == target).double().mean()


METRICS: Mapping[str, Metric] = {"accuracy": accuracy}


def read_metrics(metrics: Mapping[str, Metric] | Iterable[str | Metric]) -> dict[str, Metric]:
    """Return metrics by name.

    Args:
        metrics: by name, or functions, or names of those that there are.

    Raises:
        InvalidArgument: there is none of a name.
    """
    if isinstance(metrics, Mapping):
        return dict(metrics)
    found: dict[str, Metric] = {}
    for each in metrics:
        if isinstance(each, str):
            if each not in METRICS:
                raise InvalidArgument(f"there is no metric {each!r}; there are {', '.join(METRICS)}, and functions")
            found[each] = METRICS[each]
        else:
            found[each.__name__] = each
    return found


def _joined(parts: Sequence[Any]) -> Any:
    leaves = [pytree.tree_leaves(part) for part in parts]
    tree = pytree.tree_structure(parts[0])
    return pytree.tree_unflatten([torch.cat(each) for each in zip(*leaves, strict=True)], tree)


def _write(content: Mapping[str, Any], path: Path) -> OSError | None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(dict(content), part)
        part.replace(path)
    except (OSError, RuntimeError) as error:  # torch says RuntimeError where a folder is missing
        part.unlink(missing_ok=True)
        return error if isinstance(error, OSError) else OSError(str(error))
    return None


def _find_difference(saved: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> str | None:
    for name in (*own, *saved):
        if name not in saved:
            return f"it has no {name!r}"
        if name not in own:
            return f"it has {name!r}, which this one has not"
        if saved[name].shape != own[name].shape:
            return f"{name!r} is {list(saved[name].shape)} there and {list(own[name].shape)} here"
    return None
