"""The metrics that a model was compiled with, over all ranks that have its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np
import torch

from hocket.keras.parts import is_of_keras
from hocket.keras.whole_batch import Piece, gathered, joined, pieces_of
from hocket.train import PipelineExecutor
from hocket.train.data.micro_batches import Parts
from hocket.train.on_rank_0 import as_picklable

_OF_BATCHES = ("dice", "tversky", "circle")  # functions of Keras that return one number for a batch
_SEVERAL = {"accuracy", "acc"}  # names of several metrics; Keras chooses one by the shape of the target


class KerasMeter:
    """Metrics of a compiled model, and the losses of its outputs if it has several.

    As in Keras, metrics are updated with whole batches, in order: on one rank, to which the other ranks send the
    outputs of the model. If several ranks have copies of the last stage, and all metrics are Keras' own with variables
    that are sums over samples, each rank updates its own metrics, and only the sums are sent, at the end.

    Args:
        model: a compiled model.
        executor: executor of the model.
    """

    def __init__(self, model: keras.Model, executor: PipelineExecutor) -> None:
        self._metrics = model._compile_metrics
        self._loss = model._compile_loss
        self._executor = executor
        holders = executor.holders(executor.split.num_stages - 1)
        self._root = holders[0]
        of_user = [] if self._metrics is None else [self._metrics._user_metrics, self._metrics._user_weighted_metrics]
        given = [each for each in keras.tree.flatten(of_user) if each is not None]
        self._adds_up = len(set(holders)) > 1 and all(map(is_sum_over_samples, given))
        self._sums: list[Any] = []  # for each output's loss: the weighted sum, then the number of samples

    def begin(self) -> None:
        """Reset the metrics."""
        for each in self._all():  # model.evaluate, for example, may have updated them
            each.reset_state()
        self._sums = []

    def gather(self, outputs: Mapping[int, Any], parts: Parts) -> list[tuple[Piece, float]]:
        """Return the argument of this rank's `update`: pieces, and the ratio of their loss weight to their share."""
        pieces = pieces_of(self._executor, outputs, parts)
        if not self._adds_up:
            pieces = gathered(self._executor, pieces, self._root) or {}
        return [(pieces[each], parts.weights[each] / parts.shares[each]) for each in sorted(pieces)]

    def update(self, pieces: list[tuple[Piece, float]]) -> None:
        """Add a batch, or parts of a batch."""
        if pieces and not self._adds_up:
            pieces = [(joined([piece for piece, _ in pieces]), 1.0)]
        for (output, target), factor in pieces:
            y, *weight = target or (None,)
            if self._metrics is not None:
                self._metrics.update_state(y, output, *weight)
            if self._loss is not None and (self._loss.metrics or not self._loss.built):
                before = _values(self._loss.metrics)
                with torch.no_grad():
                    self._loss(y, output, *weight)
                now = _values(self._loss.metrics)
                before = before or [np.zeros_like(each) for each in now]
                added = [after - then for then, after in zip(before, now, strict=True)]
                added[::2] = [total * factor for total in added[::2]]  # Keras gives all calls the same weight
                sums = self._sums or [0.0] * len(added)
                self._sums = [total + each for total, each in zip(sums, added, strict=True)]

    def result(self) -> dict[str, Any]:
        """Return the metrics so far: numbers, or arrays with a number for each class."""
        comm = self._executor.comm
        metrics = [] if self._metrics is None else [self._metrics]
        values = _values(metrics)
        of_ranks: Any = [(self._sums, values)]
        if self._adds_up:
            of_ranks = comm.gather_object(of_ranks[0], self._root)
        results: dict[str, Any] = {}
        problem: Exception | None = None
        if comm.rank == self._root:
            try:
                results = self._computed(*zip(*(of_ranks or ()), strict=True))
            except Exception as error:  # a metric may raise anything; the other ranks must not wait for this one
                problem = as_picklable(error)
        results, problem = comm.broadcast_object((results, problem), self._root)
        if problem is not None:
            raise problem
        return results

    def _computed(self, sums: Sequence[list[Any]], of_metrics: Sequence[list[Any]]) -> dict[str, Any]:
        results: dict[str, Any] = {}
        losses = _added(sums)
        if losses:
            results = {
                each.name: float(losses[2 * place] / losses[2 * place + 1])
                for place, each in enumerate(self._loss.metrics)
            }
        if self._metrics is not None:
            with _set_to(self._metrics, _added(of_metrics)):
                results |= _plain(self._metrics.result())
        return results

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the metrics after the context, in which a callback may evaluate the model."""
        metrics = self._all()
        before = [_values([each]) for each in metrics]
        try:
            yield
        finally:
            for metric, values in zip(metrics, before, strict=True):
                if values:
                    _assign(metric, values)
                else:
                    metric.reset_state()

    def _all(self) -> list[Any]:
        of_losses = [] if self._loss is None else self._loss.metrics
        return [*of_losses, *([] if self._metrics is None else [self._metrics])]


def is_sum_over_samples(metric: Any) -> bool:
    """Return whether the variables of a metric, as passed to `model.compile`, are sums over samples, so that the
    variables of parts of a batch sum to those of the whole. Returns False for a user's own code."""
    if isinstance(metric, str):
        if metric.lower() in _SEVERAL:
            return True
        try:
            metric = keras.metrics.get(metric)
        except ValueError:  # an unknown name: Keras raises its own error later
            return False
    if isinstance(metric, partial):
        metric = metric.func
    if isinstance(metric, type):
        return is_of_keras(metric)
    if isinstance(metric, keras.metrics.Metric):
        function = getattr(metric, "_fn", None)
        return is_of_keras(metric) and (function is None or is_sum_over_samples(function))
    name = getattr(metric, "__name__", None)  # an instance of a loss has no name, and returns one number for a batch
    return is_of_keras(metric) and name is not None and name not in _OF_BATCHES


def _values(metrics: Iterable[Any]) -> list[Any]:
    return [np.array(keras.ops.convert_to_numpy(variable)) for each in metrics for variable in each.variables]


def _added(of_ranks: Iterable[list[Any]]) -> list[Any]:
    """Return the sums over the ranks that have values."""
    return [sum(values[1:], values[0]) for values in zip(*(each for each in of_ranks if each), strict=True)]


def _assign(metric: Any, values: Iterable[Any]) -> None:
    for variable, value in zip(metric.variables, values, strict=True):
        variable.assign(value)


@contextmanager
def _set_to(metric: Any, values: list[Any]) -> Iterator[None]:
    """Set the variables of a metric within the context; restore them afterwards."""
    before = _values([metric])
    _assign(metric, values)
    try:
        yield
    finally:
        _assign(metric, before)


def _plain(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return results as floats, or arrays with a number for each class. As in Keras, a metric with several results
    contributes their names."""
    plain: dict[str, Any] = {}
    for name, value in results.items():
        if isinstance(value, Mapping):
            plain |= _plain(value)
        else:
            array = np.array(keras.ops.convert_to_numpy(value))
            plain[name] = array if array.ndim else float(array)
    return plain
