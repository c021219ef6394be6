"""The output formats of results, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import hocket.bench.formats as folder
from hocket.bench.layout import ResultLayout
from hocket.bench.run import Run
from hocket.discovery import declared_by, load, module_names, takes
from hocket.suggestions import check_known


def format_names() -> list[str]:
    """Return the names of the output formats."""
    return module_names(folder)


def find_writer(name: str) -> Callable[[Run, ResultLayout], str]:
    """Return the function that writes a format.

    Raises:
        InvalidArgument: the name is unknown; lists the known ones.
        BadEntry: the file of the format has no valid `write` function.
    """
    check_known("format", name, format_names())
    write = declared_by(load(folder, name), "write", "a function of a Run and a layout", lambda it: takes(it, "", ""))
    return cast(Callable[[Run, ResultLayout], str], write)
