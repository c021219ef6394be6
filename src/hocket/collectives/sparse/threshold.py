"""The k-th largest magnitude of elements that are spread over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from hocket.comm import Communicator
    from hocket.comm.steps import Pending

_MANY = 1 << 16
_DIGITS_OF_MANY, _DIGITS_OF_FEW = (11, 10, 10), (8, 8, 8, 7)
"""Bits of a magnitude that a round settles, from the highest; the bits of magnitudes order as they do. Beside few
elements, histograms of 2^11 numbers would be most of what is sent: then there is a round more, of smaller ones."""
_MAGNITUDE = np.uint32(0x7FFFFFFF)


def magnitude_bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the bits of the magnitudes of floats."""
    return values.view(np.uint32) & _MAGNITUDE


def threshold_over_ranks(
    comm: Communicator, bits: NDArray[np.uint32], k: int, **how: Any
) -> Generator[Pending, None, tuple[int, int] | None]:
    """Return the bits of the k-th largest magnitude over all ranks, and how many of the equal ones are among the k.

    None if all ranks together have at most `k` elements. All ranks call it.

    Args:
        comm: a communicator of all ranks.
        bits: of this rank's magnitudes.
        k: rank of the magnitude, from 1.
        how: timeout and backend, as for `Communicator.all_reduce`.
    """
    known, num_left, left = 0, 31, k
    inside = bits
    wide = np.int32 if k * comm.size < 1 << 31 else np.int64
    for num_bits in _DIGITS_OF_FEW if k < _MANY else _DIGITS_OF_MANY:
        num_left -= num_bits
        digits = (inside >> np.uint32(num_left)) & np.uint32((1 << num_bits) - 1)
        counts = np.bincount(digits, minlength=1 << num_bits).astype(wide)
        yield comm.all_reduce(counts, async_op=True, **how)
        from_above = np.cumsum(counts[::-1], dtype=np.int64)
        if from_above[-1] <= k and inside is bits:
            return None
        step = int(np.searchsorted(from_above, left))
        digit = len(counts) - 1 - step
        left -= int(from_above[step] - counts[digit])
        known |= digit << num_left
        inside = inside[digits == digit]
    return known, left
