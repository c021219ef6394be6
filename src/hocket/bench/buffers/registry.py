"""The kinds of memory, by name."""

from __future__ import annotations

import importlib.util
from functools import lru_cache

import hocket.bench.buffers as folder
from hocket.bench.buffers.base import BufferKind
from hocket.discovery import by_name, declared
from hocket.errors import BackendUnavailable
from hocket.suggestions import check_known


@lru_cache
def buffer_kinds() -> dict[str, BufferKind]:
    """Return all kinds of memory by name, whether installed or not."""
    found = declared(folder, "KIND", "a BufferKind", lambda it: isinstance(it, BufferKind), ("base", "registry"))
    return by_name("kind of buffers", [(kind.name, module, kind) for module, kind in found])


def find_kind(name: str) -> BufferKind:
    """Return the kind of memory with this name; its package is installed.

    Raises:
        InvalidArgument: the name is unknown; lists the known ones.
        BackendUnavailable: the package that it needs is not installed.
    """
    check_known("buffer", name, buffer_kinds())
    kind = buffer_kinds()[name]
    if kind.needs is not None and importlib.util.find_spec(kind.needs[0]) is None:
        module, extra = kind.needs
        raise BackendUnavailable(f"buffer {name!r} needs {module}: pip install '{extra}'")
    return kind
