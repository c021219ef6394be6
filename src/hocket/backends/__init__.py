"""The libraries that can carry operations, one adapter a file.

shm, which needs no adapter, is native and always first. `declarations` has what all of them say of themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from functools import cache

from hocket.backends._declaration import (
    Declaration,
    Finding,
    LinkSpec,
    Requirements,
    Tested,
    find_flaw,
    installed_version,
)
from hocket.backends._shm import SharedMemory
from hocket.backends._split import make_split
from hocket.backends.base import Backend, BackendJob, Lane, Lanes, Shares
from hocket.discovery import bad_entry, by_name, declared
from hocket.errors import BackendUnavailable
from hocket.suggestions import did_you_mean

__all__ = [
    "Backend", "BackendJob", "Declaration", "Finding", "Lane", "Lanes", "LinkSpec", "Requirements", "SharedMemory",
    "Shares", "Tested", "backends_among", "declarations", "find_backends", "has_collectives", "installed_version",
    "quickest",
]  # fmt: skip


@cache
def find_backends() -> dict[str, type[Backend]]:
    """Return the adapters of this folder by name, in order of their names; their libraries are not loaded.

    Raises:
        BadEntry: a file has no adapter, one that cannot be used as it is, or one of a name that is there.
    """
    adapters = declared(sys.modules[__name__], "ADAPTER", "a subclass of Backend", _is_adapter, ("base",))
    for module, adapter in adapters:
        if (flaw := find_flaw(adapter)) is not None:
            raise bad_entry(module.__name__, module.__file__, f"has an adapter {adapter.__name__} that {flaw}")
    own = (SharedMemory.name, sys.modules[SharedMemory.__module__], SharedMemory)
    found = by_name("backend", [own, *((each.name, module, each) for module, each in adapters)])
    del found[SharedMemory.name]
    return found


def _is_adapter(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Backend)


def declarations() -> dict[str, type[Declaration]]:
    """Return what each library says of itself, by name: shared memory first."""
    return {SharedMemory.name: SharedMemory, **find_backends()}


def quickest(names: Iterable[str], num_hosts: int = 1) -> str:
    """Return that of several libraries with the least latency by its declared link; optional ones come last."""
    known = declarations()

    def order(name: str) -> tuple[bool, float]:
        declared = known.get(name)  # two at once have no declaration of their own
        link = declared.link_for(num_hosts) if declared else None
        return declared is None or declared.is_optional, link.latency_s if link else float("inf")

    return min(names, key=order)


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
                names = ("shm", *known)
                raise BackendUnavailable(
                    f"backend {name!r} is not known; there are {', '.join(names)}{did_you_mean(part, names)}"
                )
    wanted_parts = {part for name in wanted or () for part in name.split("+")}
    found = {name: adapter for name, adapter in known.items() if not adapter.is_optional or name in wanted_parts}
    return found | {name: make_split(name) for name in wanted or () if "+" in name}


def has_collectives(name: str) -> bool:
    """Return whether a backend, or both of two with a plus between, has collectives of its own."""
    known = find_backends()
    return all(known[part].has_collectives for part in name.split("+") if part in known)
