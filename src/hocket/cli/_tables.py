"""Tables on standard output."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any


def format_params(parameters: Mapping[str, Any]) -> str:
    """Format parameters of a schedule, such as num_pairs=2."""
    return ", ".join(f"{name}={value}" for name, value in parameters.items() if value is not None)


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; without a terminal it is 140 characters wide."""
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(title=title)
    for heading in headings:
        grid.add_column(heading, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 140).print(grid)
