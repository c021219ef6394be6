"""The metrics that a model was compiled with, over all ranks that see its outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import torch

from hocket.train import PipelineExecutor


class KerasMeter:
    """Metrics of a compiled model, and the losses of its outputs where it has several. Their variables are sums over
    samples, which are added up over ranks.

    Args:
        model: compiled.
        executor: of it.
    """

    def __init__(self, model: keras.Model, executor: PipelineExecutor) -> None:
        self._metrics = model._compile_metrics
        self._loss = model._compile_loss
        self._executor = executor
        self._root = executor.holders(executor.split.num_stages - 1)[0]
        for each in (*self._loss.metrics, *self._own()):  # may hold what was seen before, as by model.evaluate
            each.reset_state()
        self._sums: list[Any] = []  # of each output's loss: the weighted sum, and over how many samples it is

    def update(self, output: Any, target: Any, factor: float) -> None:
        """Add a micro-batch; its losses by their weight, which is `factor` times its share of the samples."""
        y, *weight = target
        if self._metrics is not None:
            self._metrics.update_state(y, output, *weight)
        if self._loss.metrics:  # which count all micro-batches alike
            before = _values(self._loss.metrics)
            with torch.no_grad():
                self._loss(y, output, *weight)
            pairs = zip(before, _values(self._loss.metrics), strict=True)
            added = [now - then for then, now in pairs]
            added[::2] = [total * factor for total in added[::2]]
            sums = self._sums or [0.0] * len(added)
            self._sums = [total + each for total, each in zip(sums, added, strict=True)]

    def result(self) -> dict[str, Any]:
        """Return the metrics: numbers, or arrays where there is one for each class; and begin anew."""
        comm = self._executor.comm
        metrics = self._own()
        of_ranks = comm.gather_object((self._sums, _values(metrics)), self._root)
        found: dict[str, Any] = {}
        if comm.rank == self._root:
            sums, values = zip(*(of_ranks or ()), strict=True)
            losses = _added(sums)
            found = {
                each.name: float(losses[2 * place] / losses[2 * place + 1])
                for place, each in enumerate(self._loss.metrics)
            }
            for metric in metrics:
                for variable, value in zip(metric.variables, _added(values), strict=True):
                    variable.assign(value)
                found.update({name: _plain(value) for name, value in metric.result().items()})
        for each in (*self._loss.metrics, *metrics):
            each.reset_state()
        self._sums = []
        given: dict[str, Any] = comm.broadcast_object(found, self._root)
        return given

    def _own(self) -> list[Any]:
        return [self._metrics] if self._metrics is not None else []


def _values(metrics: Iterable[Any]) -> list[Any]:
    return [np.array(keras.ops.convert_to_numpy(variable)) for each in metrics for variable in each.variables]


def _added(of_ranks: Iterable[list[Any]]) -> list[Any]:
    """Sums over the ranks that have seen something."""
    return [sum(values[1:], values[0]) for values in zip(*(each for each in of_ranks if each), strict=True)]


def _plain(value: Any) -> Any:
    array = np.array(keras.ops.convert_to_numpy(value))
    return array if array.ndim else float(array)
