"""The libraries that can carry operations, one adapter per file.

shm is native, needs no adapter, and is always first. `declarations` returns what all libraries declare.
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
    """Return the adapters of this folder by name, sorted by name; their libraries are not loaded.

    Raises:
        BadEntry: a file has no adapter, an unusable adapter, or an adapter whose name already exists.

    Examples:
        >>> from hocket.backends import find_backends
        >>> "gloo" in find_backends(), find_backends()["gloo"].has_collectives
        (True, True)
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
    """Return the declarations of all libraries by name, shared memory first.

    Examples:
        >>> from hocket.backends import declarations
        >>> next(iter(declarations()))
        'shm'
        >>> declarations()["ucx"].is_optional
        True
    """
    return {SharedMemory.name: SharedMemory, **find_backends()}


def quickest(names: Iterable[str], num_hosts: int = 1) -> str:
    """Return the library with the lowest declared latency; optional libraries come last.

    Args:
        names: names of libraries, at least one.
        num_hosts: number of hosts that the ranks are on.

    Examples:
        >>> from hocket.backends import quickest
        >>> quickest(["gloo", "mpi", "shm"])
        'shm'
        >>> quickest(["gloo", "mpi"], num_hosts=2)
        'mpi'
    """
    known = declarations()

    def order(name: str) -> tuple[bool, float]:
        declared = known.get(name)  # a pair such as "mpi+gloo" has no declaration
        link = declared.link_for(num_hosts) if declared else None
        return declared is None or declared.is_optional, link.latency_s if link else float("inf")

    return min(names, key=order)


def backends_among(wanted: Collection[str] | None) -> dict[str, type[Backend]]:
    """Return the adapters that may be started: all that are not optional, and those requested by name.

    Args:
        wanted: requested names; None: no library is requested by name. "mpi+gloo" requests both libraries and the pair,
            which comes after the single libraries.

    Raises:
        BackendUnavailable: a name is not known.

    Examples:
        >>> from hocket.backends import backends_among
        >>> "ucx" in backends_among(None), "ucx" in backends_among(["ucx"])  # ucx is optional
        (False, True)
        >>> list(backends_among(["mpi+gloo"]))[-1]
        'mpi+gloo'
    """
    known = find_backends()
    for name in wanted or ():
        for part in name.split("+"):
            if part not in known and not (part == name == "shm"):
                names = ("shm", *known)
                raise BackendUnavailable(
                    f"backend {name!r} is not known; choose from {', '.join(names)}{did_you_mean(part, names)}"
                )
    wanted_parts = {part for name in wanted or () for part in name.split("+")}
    found = {name: adapter for name, adapter in known.items() if not adapter.is_optional or name in wanted_parts}
    return found | {name: make_split(name) for name in wanted or () if "+" in name}


def has_collectives(name: str) -> bool:
    """Return whether a backend, or both of a pair such as "mpi+gloo", has its own collectives.

    Examples:
        >>> from hocket.backends import has_collectives
        >>> has_collectives("mpi"), has_collectives("ucx"), has_collectives("ucx+gloo")
        (True, False, False)
    """
    known = find_backends()
    return all(known[part].has_collectives for part in name.split("+") if part in known)
