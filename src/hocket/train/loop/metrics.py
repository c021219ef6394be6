"""Numbers beside the loss: functions of output and target, and meters of all outputs of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import torch

from hocket.errors import InvalidArgument, InvalidType
from hocket.suggestions import unknown
from hocket.train.data.micro_batches import Parts

Metric: TypeAlias = Callable[[Any, Any], Any]


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
        InvalidArgument: a name is unknown, is used twice, or is reserved for a number that is always measured.
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
