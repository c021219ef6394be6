"""The libraries that can carry operations, one adapter a file.

shm, which needs no adapter, is native and always first.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from functools import cache

from hocket.backends._split import make_split
from hocket.backends.base import Backend, Job, Lane, Lanes, Shares
from hocket.discovery import discover
from hocket.errors import BackendUnavailable

__all__ = ["Backend", "Job", "Lane", "Lanes", "Shares", "backends_among", "find_backends", "has_collectives"]


@cache
def find_backends() -> dict[str, type[Backend]]:
    """Return the adapters of this folder by name, in order of their names; their libraries are not loaded."""
    adapters: list[type[Backend]] = [each.ADAPTER for each in discover(sys.modules[__name__], ("base",))]
    return {each.name: each for each in adapters}


def backends_among(wanted: Collection[str] | None) -> dict[str, type[Backend]]:
    """Return the adapters that come into question: all but the optional ones, and those asked for by name.

    Two names with a plus between them are both libraries at once; they come after them.

    Raises:
        BackendUnavailable: a name is not known.
    """
    known = find_backends()
    for name in wanted or ():
        for part in name.split("+"):
            if part not in known and not (part == name == "shm"):
                raise BackendUnavailable(f"backend {name!r} is not known; there are {', '.join(('shm', *known))}")
    wanted_parts = {part for name in wanted or () for part in name.split("+")}
    found = {name: adapter for name, adapter in known.items() if not adapter.is_optional or name in wanted_parts}
    return found | {name: make_split(name) for name in wanted or () if "+" in name}


def has_collectives(name: str) -> bool:
    """Return whether a backend, or both of two with a plus between, has collectives of its own."""
    known = find_backends()
    return all(known[part].has_collectives for part in name.split("+") if part in known)
