"""Sizes of messages: as given, or powers of two between two ends."""

from __future__ import annotations

from hocket.errors import InvalidArgument


def powers_of_two(least: int, most: int) -> list[int]:
    """Return the powers of two from one size to another, both of which are taken as they are; 0 first, if it begins so.

    Raises:
        InvalidArgument: the first is larger, or one is negative.
    """
    if least < 0 or most < least:
        raise InvalidArgument(f"sizes go from a smaller to a larger one, not from {least} to {most}")
    between = [1 << bits for bits in range(most.bit_length()) if least < 1 << bits < most]
    return [least] if most == least else [least, *between, most]
