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
