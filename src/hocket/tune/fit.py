"""Links fitted to measurements: the cost of a message over each backend, for schedules that were not measured."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from hocket import _native
from hocket.sim import Link

_STEPS = 20
_REDUCED_NBYTES = 1 << 20


@dataclass(frozen=True)
class Fit:
    """The link of one backend between the ranks of a table.

    Args:
        backend: name of the backend.
        alpha_s: seconds of a message, for any size.
        beta_s: seconds per byte of a message.
        gamma_s: seconds per byte of a reduction.
        misfit: largest deviation of a measured time from the fitted one, as a share of the latter.
    """

    backend: str
    alpha_s: float
    beta_s: float
    gamma_s: float
    misfit: float

    @property
    def link(self) -> Link:
        return Link(self.alpha_s, self.beta_s, self.gamma_s)


def link_over(backend: str, fits: Iterable[Fit]) -> Link | None:
    """Return the link that was fitted to messages over a backend, or None."""
    return next((fit.link for fit in fits if fit.backend == backend), None)


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Fit seconds = alpha + beta * nbytes robustly, with alpha and beta at or above zero.

    Relative deviations count, so small messages have the same weight as large ones. Points that deviate more than
    others lose weight from step to step (least absolute deviations by iteratively reweighted least squares).

    Args:
        points: (nbytes, seconds); at least one.

    Returns:
        alpha in seconds, beta in seconds per byte, and the largest relative deviation.
    """
    weights = [1.0] * len(points)
    alpha, beta = min(seconds for _, seconds in points), 0.0
    for _ in range(_STEPS):
        scaled = [weight / seconds**2 for weight, (_, seconds) in zip(weights, points, strict=True)]
        sum_w = sum(scaled)
        mean_x = sum(w * x for w, (x, _) in zip(scaled, points, strict=True)) / sum_w
        mean_y = sum(w * y for w, (_, y) in zip(scaled, points, strict=True)) / sum_w
        spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(scaled, points, strict=True))
        slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(scaled, points, strict=True))
        beta = max(0.0, slope / spread) if spread else 0.0
        alpha = mean_y - beta * mean_x
        if alpha < 0:  # then the line goes through the origin
            alpha = 0.0
            beta = sum(w * x * y for w, (x, y) in zip(scaled, points, strict=True)) / max(
                sum(w * x * x for w, (x, _) in zip(scaled, points, strict=True)), 1e-300
            )
        weights = [1 / max(abs(y - alpha - beta * x) / y, 1e-3) for x, y in points]
    deviations = [abs(y - alpha - beta * x) / max(alpha + beta * x, 1e-300) for x, y in points]
    return alpha, beta, max(deviations)


def measure_gamma_s() -> float:
    """Measure and return the seconds per byte of a reduction of one float32 array into another, on this rank."""
    import numpy as np

    x, y = np.ones(_REDUCED_NBYTES // 4, np.float32), np.ones(_REDUCED_NBYTES // 4, np.float32)
    addresses = [x.ctypes.data, y.ctypes.data]
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        _native.reduce_memory("float32", "max", addresses[0], addresses, _REDUCED_NBYTES)
        times.append(time.perf_counter() - begin)
    return median(times) / _REDUCED_NBYTES


def is_usable(value: object) -> bool:
    """Return whether a value is valid in a fit: a finite number of 0 or more."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
