"""The k-th largest magnitude of elements that are spread over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket import _native

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from hocket.comm import Communicator
    from hocket.comm.steps import Pending

_SAMPLES = 128
"""Of each rank, at equal distances of its sorted magnitudes."""
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_NUM_COUNTS = 4


def magnitude_bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the bits of the magnitudes of floats; they order as the magnitudes do."""
    return values.view(np.uint32) & _MAGNITUDE


@dataclass(frozen=True)
class Threshold:
    """The k-th largest magnitude.

    Args:
        bits: of the magnitude.
        num_equal: how many of the equal ones are among the k.
        of_ranks: how many equal ones each rank has.
        above: how many larger ones each rank has.
    """

    bits: int
    num_equal: int
    of_ranks: NDArray[np.int64]
    above: NDArray[np.int64]

    def kept(self) -> NDArray[np.int64]:
        """Return how many of the k each rank has: of the equal ones, those of the first ranks."""
        before = np.cumsum(self.of_ranks) - self.of_ranks
        kept: NDArray[np.int64] = self.above + np.clip(self.num_equal - before, 0, self.of_ranks)
        return kept


@dataclass(frozen=True)
class Bounds:
    """What the samples of all ranks tell about the k-th largest magnitude; equal on all ranks.

    Args:
        low, high: bits of two magnitudes between which, with both included, the k-th largest is.
        most_between: how many magnitudes each rank has between them at most.
        most_from: how many each rank has from `low` at most.
    """

    low: int
    high: int
    most_between: NDArray[np.int64]
    most_from: NDArray[np.int64]


@dataclass(frozen=True)
class MagnitudeSamples:
    """The magnitudes of this rank, and samples of those of all ranks.

    Args:
        ascending: bits of this rank's magnitudes.
        sizes: number of magnitudes of each rank.
        rows: samples of each rank, the largest first.
    """

    ascending: NDArray[np.uint32]
    sizes: NDArray[np.int64]
    rows: NDArray[np.uint32]

    def bounds(self, k: int) -> Bounds:
        """Return bounds of the k-th largest magnitude; all ranks together have more than `k`."""
        none = np.zeros(_SAMPLES, np.int64)
        positions = np.array([_positions(size) if size else none for size in self.sizes.tolist()])
        return _bounds(self.sizes, self.rows, positions, k)


def sample(comm: Communicator, values: NDArray[np.float32], **how: Any) -> Generator[Pending, None, MagnitudeSamples]:
    """Tell all ranks 128 of this rank's sorted magnitudes; called by all ranks.

    They bound for every magnitude how many each rank has above it, and so give two of them between which the k-th
    largest is.
    """
    ascending = _native.sorted_magnitudes(values)
    told = np.zeros(1 + _SAMPLES, np.uint32)
    told[0] = len(ascending)
    if len(ascending):
        told[1:] = ascending[len(ascending) - _positions(len(ascending))]
    rows = np.empty((comm.size, 1 + _SAMPLES), np.uint32)
    yield comm.all_gather(rows, told, async_op=True, **how)
    return MagnitudeSamples(ascending, rows[:, 0].astype(np.int64), rows[:, 1:])


def _positions(size: int) -> NDArray[np.int64]:
    """Return the ranks, from 1, of the samples among sorted magnitudes; the last one is the last."""
    return -(-size * np.arange(1, _SAMPLES + 1, dtype=np.int64) // _SAMPLES)


def _bounds(sizes: NDArray[np.int64], samples: NDArray[np.uint32], positions: NDArray[np.int64], k: int) -> Bounds:
    """See `MagnitudeSamples.bounds`."""
    candidates = np.unique(samples[sizes > 0])
    surely_from, maybe_from, maybe_above = (np.empty((len(sizes), len(candidates)), np.int64) for _ in range(3))
    for rank, (size, of_rank, places) in enumerate(zip(sizes.tolist(), samples, positions, strict=True)):
        if not size:
            surely_from[rank] = maybe_from[rank] = maybe_above[rank] = 0
            continue
        descending = of_rank[::-1]  # ascending, for searchsorted
        num_from = _SAMPLES - np.searchsorted(descending, candidates, side="left")  # samples >= each candidate
        num_above = _SAMPLES - np.searchsorted(descending, candidates, side="right")  # samples > each candidate
        counts = np.concatenate(([0], places))
        surely_from[rank] = counts[num_from]
        maybe_from[rank] = np.where(num_from < _SAMPLES, places[np.minimum(num_from, _SAMPLES - 1)] - 1, size)
        # The sample behind those above is at most the candidate: so fewer than its place are above.
        maybe_above[rank] = np.where(num_above < _SAMPLES, places[np.minimum(num_above, _SAMPLES - 1)] - 1, size)
    at_low = np.flatnonzero(surely_from.sum(0) >= k)[-1]
    fitting = np.flatnonzero(maybe_above.sum(0) < k)
    low = int(candidates[at_low])
    most_above_low, most_from = maybe_above[:, at_low], maybe_from[:, at_low]
    if not len(fitting):
        return Bounds(low, int(_MAGNITUDE), most_above_low, most_from)
    most_between = np.maximum(most_above_low - surely_from[:, fitting[0]], 0)
    return Bounds(low, int(candidates[fitting[0]]), most_between, most_from)


def threshold_over_ranks(
    comm: Communicator, samples: MagnitudeSamples, bounds: Bounds, k: int, **how: Any
) -> Generator[Pending, None, Threshold]:
    """Return the k-th largest magnitude over all ranks, which tell the few that they have between the bounds.

    All ranks call it.

    Args:
        comm: a communicator of all ranks.
        samples: of the magnitudes of all ranks, which are more than `k`.
        bounds: of the magnitude.
        k: rank of the magnitude, from 1.
        how: timeout and backend, as for `Communicator.all_gatherv`.
    """
    ascending, low, high, most = samples.ascending, bounds.low, bounds.high, bounds.most_between
    edges = [
        int(np.searchsorted(ascending, np.uint32(bound), side=side))  # type: ignore[call-overload]
        for bound, side in ((low, "left"), (low, "right"), (high, "left"), (high, "right"))
    ]
    from_low, above_low, from_high, above_high = edges
    inside = ascending[above_low:from_high] if low < high else ascending[:0]
    counts = [len(ascending) - above_high, above_high - from_high, len(inside), above_low - from_low]
    own = np.zeros(_NUM_COUNTS + int(most[comm.rank]), np.uint32)
    own[:_NUM_COUNTS] = counts
    own[_NUM_COUNTS : _NUM_COUNTS + len(inside)] = inside
    sizes = most + _NUM_COUNTS
    out = np.empty(int(sizes.sum()), np.uint32)
    yield comm.all_gatherv(out, own, sizes.tolist(), async_op=True, **how)
    parts = np.split(out, np.cumsum(sizes)[:-1])
    above, at_high, num_inside, at_low = np.array([each[:_NUM_COUNTS] for each in parts], np.int64).T
    left = k - int(above.sum())
    if left <= at_high.sum():
        return Threshold(high, left, at_high, above)
    left -= int(at_high.sum())
    if left > num_inside.sum():
        return Threshold(low, left - int(num_inside.sum()), at_low, above + at_high + num_inside)
    told = [each[_NUM_COUNTS : _NUM_COUNTS + count] for each, count in zip(parts, num_inside.tolist(), strict=True)]
    every = np.sort(np.concatenate(told))
    found = every[len(every) - left]
    num_above = len(every) - int(np.searchsorted(every, found, side="right"))
    equal, larger = (
        np.array([np.count_nonzero(match(each, found)) for each in told]) for match in (np.equal, np.greater)
    )
    return Threshold(int(found), left - num_above, equal, above + at_high + larger)
