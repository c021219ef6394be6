"""Compares results bit by bit and reports the difference."""

from __future__ import annotations

import numpy as np

from .data import Array


class WrongResult(AssertionError):
    """The result of an operation differs from NumPy's; the message names case, rank, index and both values."""


def as_bits(array: Array) -> Array:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(f"u{flat.dtype.itemsize}")


def check(
    got: Array, expected: Array, case: object, rank: int, *, reduced: bool = False, signed_zeros: bool = True
) -> None:
    """Raise `WrongResult` unless all bits are equal; for NaN in a reduction only the positions must be equal.

    Without `signed_zeros` a reduction may return either zero: the one that min and max keep depends on the order of
    the operands.
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise WrongResult(f"{case}: rank {rank}: {got.dtype}{got.shape} instead of {expected.dtype}{expected.shape}")
    if got.size == 0:
        return
    wrong = as_bits(got) != as_bits(expected)
    if not wrong.any():
        return
    if reduced:
        wrong &= ~((got != got) & (expected != expected)).reshape(-1)
        if not signed_zeros:
            wrong &= (got != expected).reshape(-1)
    places = np.flatnonzero(wrong)
    if places.size == 0:
        return
    first = int(places[0])
    raise WrongResult(
        f"{case}: rank {rank}: {places.size} of {got.size} items differ, first at index {first} (last {places[-1]}): "
        f"got {got.reshape(-1)[first]!r} ({as_bits(got)[first]:#x}), "
        f"expected {expected.reshape(-1)[first]!r} ({as_bits(expected)[first]:#x})"
    )
