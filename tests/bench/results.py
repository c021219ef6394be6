"""Results as measured ones look, of seeded noise."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hocket.bench.point import Point
from hocket.bench.result import Result


def result(
    benchmark: str = "all_reduce",
    nbytes: int = 1024,
    samples: Sequence[float] = (1e-5,) * 9,
    target: str = "shm",
    num_ranks: int = 2,
    calls: Sequence[tuple[float, ...]] = (),
    launches: Sequence[int] = (),
    parts: Mapping[str, Sequence[float]] = MappingProxyType({}),
    place: str = "",
) -> Result:
    """Return one of samples as they are given."""
    dtype = "float32" if "reduce" in benchmark else "uint8"
    return Result(
        Point(benchmark, target, nbytes, dtype=dtype, place=place),
        num_ranks,
        tuple(samples),
        tuple(calls),
        0,
        10,
        {name: tuple(each) for name, each in parts.items()},
        tuple(launches),
    )


def noisy(seconds: float, count: int, seed: int, disturbances: Sequence[float] = ()) -> list[float]:
    """Return times that nothing but disturbances makes longer: most a few percent, some by half.

    Args:
        seconds: undisturbed.
        count: how many.
        seed: of the noise.
        disturbances: of a round, which all that is measured in it has in common; factors.
    """
    noise = random.Random(seed)
    found = []
    for number in range(count):
        factor = 1 + 0.03 * noise.random() + (0.5 if noise.random() < 0.08 else 0.0)
        found.append(seconds * factor * (disturbances[number] if disturbances else 1.0))
    return found
