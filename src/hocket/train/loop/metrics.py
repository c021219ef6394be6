"""Metrics: functions of output and target, and meters over all outputs of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import torch

from hocket.errors import InvalidArgument, InvalidType
from hocket.suggestions import unknown
from hocket.train.data.micro_batches import Parts

Metric: TypeAlias = Callable[[Any, Any], Any]


class Meter(Protocol):
    """Sums statistics of many outputs. Every method is called by all ranks."""

    def begin(self) -> None:
        """Reset the sums."""

    def gather(self, outputs: Mapping[int, Any], parts: Parts) -> Any:
        """Exchange the outputs of a batch between ranks, as far as needed; return the argument of this rank's `update`.

        Args:
            outputs: outputs of the micro-batches whose last stage this rank has, by micro-batch.
            parts: all micro-batches of the replica, and their weights in the batch.
        """

    def update(self, gathered: Any) -> None:
        """Add a batch. Must not communicate; may raise on one rank only."""

    def result(self) -> dict[str, float]:
        """Return the numbers of all batches so far, equal on all ranks."""


def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the fraction of samples whose largest output, along the last axis, is at the target's index."""
    return (output.argmax(-1) == target).double().mean()


METRICS: Mapping[str, Metric] = {"accuracy": accuracy}
_RESERVED = ("loss", "samples_per_s")  # numbers that every training has


def _named(metric: str | Metric) -> tuple[str, Metric]:
    if not isinstance(metric, str):
        return getattr(metric, "__name__", type(metric).__name__), metric
    if metric not in METRICS:
        raise InvalidArgument(
            f"{unknown('metric', metric, METRICS)}; a function (output, target) -> number is a metric, too"
        )
    return metric, METRICS[metric]


def read_metrics(metrics: Mapping[str, Metric] | Iterable[str | Metric]) -> dict[str, Metric]:
    """Return metrics by name.

    Args:
        metrics: functions by name, or a list of functions and of names in `METRICS`.

    Raises:
        InvalidArgument: a name is unknown, is used twice, or is reserved for a number that every training has.
        InvalidType: a metric is not callable, or `metrics` is a single one.
    """
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        raise InvalidType(f"metrics must be a list or a mapping, as in metrics=[{metrics!r}]")
    pairs = list(metrics.items()) if isinstance(metrics, Mapping) else [_named(each) for each in metrics]
    for name, metric in pairs:
        if not callable(metric):
            raise InvalidType(f"metric {name!r} must be a function (output, target) -> number, not {metric!r}")
        if name in _RESERVED or [other for other, _ in pairs].count(name) > 1:
            raise InvalidArgument(f"several numbers would have the name {name!r}: pass metrics as {{name: function}}")
    return dict(pairs)
