"""The forms in which results are written, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

import hocket.bench.formats as folder
from hocket.bench.layout import Layout
from hocket.bench.run import Run
from hocket.discovery import module_names
from hocket.errors import InvalidArgument


def format_names() -> list[str]:
    """Return their names."""
    return module_names(folder)


def find_writer(name: str) -> Callable[[Run, Layout], str]:
    """Return what writes a form.

    Raises:
        InvalidArgument: there is none of the name; lists those that there are.
    """
    if name not in format_names():
        raise InvalidArgument(f"there is no format {name!r}; there are {', '.join(format_names())}")
    return cast(Callable[[Run, Layout], str], importlib.import_module(f"{folder.__name__}.{name}").write)
