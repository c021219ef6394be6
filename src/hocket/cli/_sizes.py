"""Sizes as people write them."""

from __future__ import annotations

import re

from hocket.errors import InvalidArgument

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def read_size(text: str) -> int:
    """Return the number of bytes that "16", "16B", "64KiB", "1M" or "2 GiB" names; all units are powers of 1024."""
    match = re.fullmatch(r"(\d+)\s*([kmg]?)(i?b)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise InvalidArgument(f"{text!r} is no size; write it like 16, 64KiB or 1MiB")
    return int(match[1]) * _UNITS[match[2].lower()]
