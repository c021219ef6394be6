"""Arithmetic that the families share."""

from __future__ import annotations


def ceil_log2(value: int) -> int:
    """Return the smallest q with 2 ** q >= value."""
    return (value - 1).bit_length()


def floor_log2(value: int) -> int:
    """Return the largest q with 2 ** q <= value."""
    return value.bit_length() - 1


def need_power_of_two(num_ranks: int) -> str | None:
    """Return a refusal unless the number of ranks is a power of two."""
    return None if num_ranks & (num_ranks - 1) == 0 else "it needs a power of two"
