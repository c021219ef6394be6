"""Progress on stderr: a bar with time left on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hocket.measure.rounds import OnRound

_LINE_EVERY_S = 10.0


@contextmanager
def progress(what: str, unit: str = "rounds", shown: bool = True) -> Iterator[OnRound]:
    """Shows how far a long piece of work is; gives the callable that `measure` takes as `on_round`.

    Args:
        what: What is done, in a few words.
        unit: What is counted.
        shown: False: nothing is shown, for ranks of which another one shows it.
    """
    if not shown:
        yield lambda done, total, state: None
        return
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
        )
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=None, state="calibrating" if unit == "rounds" else "")

            def update(done: int, total: int, state: str) -> None:
                bar.update(task, completed=done, total=total, state=state)

            yield update
        return

    last = -_LINE_EVERY_S

    def write(done: int, total: int, state: str) -> None:
        nonlocal last
        now = time.monotonic()
        if done == total or now - last >= _LINE_EVERY_S:
            last = now
            print(f"{what}: {done} of {total} {unit}{f', {state}' if state else ''}", file=sys.stderr, flush=True)

    yield write
