"""Export a table in the formats of other tools: one file per format in `exporters`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import hocket.tune.exporters as folder
from hocket.discovery import discover, takes
from hocket.errors import InvalidArgument, InvalidType
from hocket.suggestions import check_known
from hocket.tune.table import Table

Write = Callable[[Table, Sequence[int]], str]
"""(table, numbers of ranks) -> text."""

_found: dict[str, Exporter] = {}


@dataclass(frozen=True)
class Exporter:
    """A format of another tool.

    Args:
        name: name of the format in `hocket tune export`.
        description: the tools that read the format, and whether this was tested.
        write: function that returns the text.
    """

    name: str
    description: str
    write: Write


def exporter(name: str, description: str) -> Callable[[Write], Write]:
    """Register the decorated function as `Exporter.write`.

    Raises:
        InvalidArgument: an exporter of that name exists already.
        InvalidType: the function does not take a table and numbers of ranks.
    """

    def register(write: Write) -> Write:
        if not takes(write, "table", "ranks"):
            raise InvalidType(f"exporter {name!r} must be a function of a table and numbers of ranks, not {write!r}")
        if name in _found:
            raise InvalidArgument(f"exporter {name!r} exists already, in {_found[name].write.__module__}")
        _found[name] = Exporter(name, description, write)
        return write

    return register


@lru_cache
def exporters() -> dict[str, Exporter]:
    """Return all formats by name."""
    discover(folder, into=_found)
    return dict(sorted(_found.items()))


def export_table(table: Table, name: str, ranks: Sequence[int] = ()) -> str:
    """Return a table as text of a format.

    Args:
        table: the table to export.
        name: name of the format.
        ranks: numbers of ranks to write rules for; by default those of the table.

    Raises:
        InvalidArgument: the format is unknown; lists the known ones.
    """
    check_known("format", name, exporters())
    return exporters()[name].write(table, sorted(ranks) or sorted({row.num_ranks for row in table.rows}))
