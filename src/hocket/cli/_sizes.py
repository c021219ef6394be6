"""Sizes in bytes, as users write them."""

from __future__ import annotations

import re

from hocket.errors import InvalidArgument

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def read_size(text: str) -> int:
    """Return the number of bytes of a size such as "16", "16B", "64KiB", "1M" or "2 GiB"; units are powers of 1024."""
    match = re.fullmatch(r"(\d+)\s*([kmg]?)(i?b)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise InvalidArgument(f"{text!r} is not a size; write, for example, 16, 64KiB or 1MiB")
    return int(match[1]) * _UNITS[match[2].lower()]


def read_counts(text: str, option: str, most: int | None = None) -> list[int]:
    """Return the numbers of a text such as "4,8,16".

    Args:
        text: numbers separated by commas.
        option: name of the option, for messages.
        most: the largest number that is possible; None: any.

    Raises:
        InvalidArgument: it is another text, or a number is below 1 or above `most`.
    """
    parts = [each.strip() for each in text.split(",")]
    if not all(each.isdecimal() and len(each) < 10 for each in parts):
        raise InvalidArgument(f"{option} must be numbers separated by commas, not {text!r}")
    counts = [int(each) for each in parts]
    if min(counts) < 1 or (most is not None and max(counts) > most):
        raise InvalidArgument(f"{option} must be 1 or more{f', at most {most}' if most else ''}, not {text!r}")
    return counts


def check_once(names: list[str], option: str) -> None:
    """Check that nothing comes twice.

    Raises:
        InvalidArgument: something does.
    """
    if len(set(names)) < len(names):
        raise InvalidArgument(f"{option} has something twice: {', '.join(names)}")
