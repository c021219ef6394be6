"""What the families share: arithmetic of ranks."""

from __future__ import annotations


def ceil_log2(value: int) -> int:
    """Return the least q with 2 ** q >= value."""
    return (value - 1).bit_length()


def floor_log2(value: int) -> int:
    """Return the greatest q with 2 ** q <= value."""
    return value.bit_length() - 1


def need_power_of_two(num_ranks: int) -> str | None:
    """Say that an algorithm is for powers of two only, if it is not one."""
    return None if num_ranks & (num_ranks - 1) == 0 else "it is for powers of two"
