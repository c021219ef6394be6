"""The libraries that can carry operations, one adapter a file.

shm, which needs no adapter, is native and always first.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection
from functools import cache

from hocket.backends.base import Backend, Job, Lane, Lanes

__all__ = ["Backend", "Job", "Lane", "Lanes", "backends_among", "find_backends"]


@cache
def find_backends() -> dict[str, type[Backend]]:
    """Return the adapters of this folder by name, in order of their names; their libraries are not loaded."""
    found = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda each: each.name):
        if module.name != "base" and not module.name.startswith("_"):
            adapter: type[Backend] = importlib.import_module(f"{__name__}.{module.name}").ADAPTER
            found[adapter.name] = adapter
    return found


def backends_among(wanted: Collection[str] | None) -> dict[str, type[Backend]]:
    """Return the adapters that come into question: all but the optional ones, and those asked for by name."""
    return {
        name: adapter
        for name, adapter in find_backends().items()
        if not adapter.is_optional or (wanted is not None and name in wanted)
    }
