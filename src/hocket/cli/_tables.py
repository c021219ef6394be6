"""Tables on standard output."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def format_params(parameters: Mapping[str, Any], *, shows_unset: bool = False) -> str:
    """Return parameters of a schedule as text, such as num_pairs=2; with `shows_unset` also those that are None."""
    shown = {name: value for name, value in parameters.items() if shows_unset or value is not None}
    return ", ".join(f"{name} unset" if value is None else f"{name}={value}" for name, value in shown.items())


def console_of(width: int, **options: Any) -> Console:
    """Return a console on standard output; `width` is its width in characters if it is not a terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width, **options)


def table_of(title: str, headings: Sequence[str], left: Collection[str], **options: Any) -> Table:
    """Return a table without rows. Columns in `left` are left-aligned, others right; `options` apply to all columns."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", **options)
    return table


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, 140 characters wide if standard output is not a terminal."""
    from rich.table import Table as Grid

    grid = Grid(title=title)
    for heading in headings:
        grid.add_column(heading, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    console_of(140).print(grid)
