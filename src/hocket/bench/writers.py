"""The forms in which results are written, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import hocket.bench.formats as folder
from hocket.bench.layout import ResultLayout
from hocket.bench.run import Run
from hocket.discovery import declared_by, load, module_names, takes
from hocket.errors import InvalidArgument
from hocket.suggestions import unknown


def format_names() -> list[str]:
    """Return their names."""
    return module_names(folder)


def find_writer(name: str) -> Callable[[Run, ResultLayout], str]:
    """Return what writes a form.

    Raises:
        InvalidArgument: there is none of the name; lists those that there are.
        BadEntry: its file has no function that could write it.
    """
    if name not in format_names():
        raise InvalidArgument(unknown("format", name, format_names()))
    write = declared_by(load(folder, name), "write", "a function of a Run and a layout", lambda it: takes(it, "", ""))
    return cast(Callable[[Run, ResultLayout], str], write)
