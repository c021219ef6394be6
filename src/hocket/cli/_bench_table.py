"""Tables of benchmark results in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

from hocket.bench.point import labels_of
from hocket.bench.result import clearly_fastest, format_value
from hocket.cli._bench_options import is_first
from hocket.cli._tables import console_of
from hocket.comm.policy import format_nbytes
from hocket.measure.progress_bar import Bar, progress

if TYPE_CHECKING:
    from rich.console import Group

    from hocket.bench.result import Result
    from hocket.bench.run import Run
    from hocket.measure.rounds import OnRound


@contextmanager
def shown(what: str) -> Iterator[tuple[OnRound, Callable[[Sequence[Result]], object] | None]]:
    """Show the progress of a run on stderr; on a terminal, with the tables of the results so far.

    Yields:
        The callbacks `on_round` and `on_results` of `run_points`.
    """
    if not sys.stderr.isatty() or not is_first():
        with progress(what, "points", is_first()) as on_round:
            yield on_round, None
        return
    from rich.console import Console, Group
    from rich.live import Live

    bar = Bar(what, "points known well enough")
    with Live(bar.columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as live:

        def on_results(results: Sequence[Result]) -> None:
            live.update(Group(*tables_of(results), bar.columns))

        yield bar.update, on_results


def print_run(ran: Run) -> None:
    """Print a table for each benchmark, and the core factor and load of the machine."""
    console = console_of(160)
    for table in tables_of(ran.results):
        console.print(table)
    late = sum(each.num_late for each in ran.results)
    console.print(
        f"medians with their 95 % intervals; core factor {ran.core_factor:.2f}, foreign work {ran.foreign_busy:.0%}, "
        f"{late} calls begun too late and dropped",
        highlight=False,
    )


def tables_of(results: Sequence[Result]) -> list[Group]:
    """Return a table for each benchmark: one row per size, one column per way; the clearly fastest way is bold."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    tables = []
    by_name = sorted(results, key=lambda each: each.point.benchmark)
    for name, group in groupby(by_name, lambda each: each.point.benchmark):
        listed = list(group)
        labels, common = labels_of(each.point for each in listed)
        title = f"{name}, {listed[0].num_ranks} ranks, {listed[0].unit} ({common})"
        table = Table()
        table.add_column("size", justify="right")
        for label in labels.values():
            table.add_column(label, justify="right")
        for nbytes, row in groupby(sorted(listed, key=lambda each: each.point.nbytes), lambda each: each.point.nbytes):
            by_way = {each.point.way: each for each in row}
            best = clearly_fastest(by_way.values())
            table.add_row(format_nbytes(nbytes), *(_cell(by_way.get(way), best) for way in labels))
        tables.append(Group(Text(title, style="italic"), table))  # a table's own title is as narrow as the table
    return tables


def _cell(result: Result | None, best: Result | None) -> str:
    if result is None:
        return "-"
    spread = "" if result.precision is None else f" ±{result.precision:.0%}"
    hidden = "" if result.overlap is None else f", {result.overlap:.0f}% hidden"
    text = f"{format_value(result.value)}{spread}{hidden}"
    return f"[bold]{text}[/bold]" if result is best else text
