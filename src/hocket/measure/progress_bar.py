"""Progress on stderr: a bar with time left on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hocket.measure.rounds import OnRound

if TYPE_CHECKING:
    from rich.progress import Progress

_LINE_EVERY_S = 10.0
_WIDE = 120  # columns of a terminal
_SHORT = 12  # characters of a description that fit on narrower ones
_BETWEEN = 5  # columns between the parts of a bar


@contextmanager
def progress(what: str, unit: str = "rounds", shown: bool = True) -> Iterator[OnRound]:
    """Show the progress of a long task on stderr; yield the callback `on_round` for `measure`.

    Args:
        what: Description of the task in a few words.
        unit: Name of the counted items.
        shown: False shows nothing, for all ranks but the first.

    Examples:
        >>> import contextlib, sys
        >>> with contextlib.redirect_stderr(sys.stdout), hk.measure.progress("all_reduce") as on_round:
        ...     on_round(9, 9, "core factor 1.98")
        all_reduce: 9 of 9 rounds, core factor 1.98
    """
    if not shown:
        yield lambda done, total, state, left_s=None: None
    elif sys.stderr.isatty():
        bar = Bar(what, unit)
        with bar.columns:
            yield bar.update
    else:
        yield Lines(what, unit).write


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal that a task of unknown length is running; remove it at the end.

    Args:
        what: Description of the task in a few words.
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


class Pace:
    """The time left of a task that began when this object was made."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def left_s(self, done: int, total: int) -> float | None:
        """Return the estimated seconds until the end, by the pace so far; None before the first item is done."""
        return (time.monotonic() - self._began_s) * (total - done) / done if done else None

    def share(self, left_s: float) -> float:
        """Return the elapsed share of the time, 0 to 1, if `left_s` seconds are left."""
        elapsed_s = time.monotonic() - self._began_s
        return elapsed_s / (elapsed_s + left_s) if left_s else 1.0


class Lines:
    """Write a line on stderr every few seconds, and one at the end.

    Args:
        what, unit: As of `progress`.
    """

    def __init__(self, what: str, unit: str) -> None:
        self._what, self._unit = what, unit
        self._pace = Pace()
        self._last_s = -_LINE_EVERY_S

    def write(self, done: int, total: int, state: str, left_s: float | None = None, /) -> None:
        """Write a line if the last one is old enough; called as `OnRound`."""
        now_s = time.monotonic()
        if done != total and now_s - self._last_s < _LINE_EVERY_S:
            return
        self._last_s = now_s
        left_s = self._pace.left_s(done, total) if left_s is None else left_s
        left = "" if left_s is None or done == total else f", about {format_left(left_s)} left"
        state = f", {state}" if state else ""
        print(f"{self._what}: {done} of {total} {self._unit}{left}{state}", file=sys.stderr, flush=True)


class Bar:
    """A bar of the elapsed time, with the count, the time left, and the current activity.

    Args:
        what, unit: As of `progress`.

    Attributes:
        columns: The Rich display; use it as a context manager, or as a part of a larger display.
    """

    def __init__(self, what: str, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(stderr=True)
        is_narrow = self._console.width < _WIDE
        self._what = "" if is_narrow and len(what) > _SHORT else what
        self._bar_width = 12 if is_narrow else 24
        texts = ("{task.fields[left]}", "{task.fields[counted]}", "{task.fields[state]}")
        self.columns: Progress = Progress(
            *([TextColumn("{task.description}", markup=False)] if self._what else []),
            BarColumn(bar_width=self._bar_width),
            *(TextColumn(text, markup=False) for text in texts),
            console=self._console,
        )
        self._unit = unit
        self._pace = Pace()
        state = "setting up" if self._what else what  # a narrow bar shows the description until the first update
        self._task = self.columns.add_task(what, total=None, counted="", left="", state=state)

    def update(self, done: int, total: int, state: str, left_s: float | None = None, /) -> None:
        """Redraw the bar; called as `OnRound`."""
        left_s = self._pace.left_s(done, total) if left_s is None else left_s
        left = "" if left_s is None else f"{format_left(left_s)} left"
        counted = f"{done} of {total} {self._unit}"
        # The activity is cut to fit: Rich would cut the time left instead.
        room = self._console.width - sum(map(len, (self._what, left, counted))) - self._bar_width - _BETWEEN
        self.columns.update(
            self._task,
            completed=None if left_s is None else self._pace.share(left_s),
            total=None if left_s is None else 1.0,
            counted=counted,
            left=left,
            state=state if len(state) <= room else f"{state[: room - 1]}\u2026" if room > 1 else "",
        )


def format_left(seconds: float) -> str:
    """Format seconds of waiting: "8 s", "3:20", "1:05:00"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
