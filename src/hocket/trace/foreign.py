"""Keeps hocket's own use of torch out of what the preloaded hooks record: hocket has events of its own for it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_groups() -> Iterator[None]:
    """Process groups of torch that this thread makes inside are hocket's own; without the hooks nothing happens."""
    switch = getattr(ctypes.CDLL(None), "hocket_makes_own_groups", None)
    if switch is None:
        yield
        return
    switch(1)
    try:
        yield
    finally:
        switch(0)
