"""The libraries that can carry operations, one adapter a file.

shm, which needs no adapter, is native and always first.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from hocket.backends.base import Backend, Job, Lane, Lanes

__all__ = ["Backend", "Job", "Lane", "Lanes", "find_backends"]


@cache
def find_backends() -> dict[str, type[Backend]]:
    """Return the adapters of this folder by name, in order of their names; their libraries are not loaded."""
    found = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda each: each.name):
        if module.name != "base":
            adapter: type[Backend] = importlib.import_module(f"{__name__}.{module.name}").ADAPTER
            found[adapter.name] = adapter
    return found
