"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from .load import scaled

_EVERY_S = 0.02
_Found = TypeVar("_Found")


def until(found: Callable[[], _Found], seconds: float = 60.0) -> _Found:
    """What a function returns as soon as that is true; it fails after some seconds, scaled for this run."""
    deadline_s = time.monotonic() + scaled(seconds)
    while not (result := found()):
        assert time.monotonic() < deadline_s, f"{found.__qualname__} found {result!r} for {scaled(seconds):g} s"
        time.sleep(_EVERY_S)
    return result
