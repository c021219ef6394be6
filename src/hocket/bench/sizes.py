"""Message sizes: powers of two between two sizes."""

from __future__ import annotations

from hocket.errors import InvalidArgument


def powers_of_two(least: int, most: int) -> list[int]:
    """Return `least`, the powers of two between, and `most`; `least` may be 0.

    Raises:
        InvalidArgument: `least` is larger than `most`, or negative.
    """
    if least < 0 or most < least:
        raise InvalidArgument(f"sizes must go from 0 or more to at least the same, not from {least} to {most}")
    between = [1 << bits for bits in range(most.bit_length()) if least < 1 << bits < most]
    return [least] if most == least else [least, *between, most]
