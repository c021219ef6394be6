"""What a view of the page is: a file in `views/` that declares one as `VIEW`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hocket.observe.store.rollups import LATEST_S
from hocket.observe.store.stored_run import StoredRun
from hocket.observe.store.table_questions import TableQuestion

DEFAULT_SPANS, MOST_SPANS = 600, 4000
_TIMEOUT_S = 30.0
_MOST_ROWS = 100_000


@dataclass(frozen=True)
class ViewWindow:
    """The part of a run that a view shows.

    Args:
        begin_s, end_s: seconds since the run began; None: from the first or to the last event.
        spans: at most so many spans of time.
    """

    begin_s: float | None = None
    end_s: float | None = None
    spans: int = DEFAULT_SPANS


@dataclass(frozen=True)
class View:
    """A view.

    Args:
        name: in the address.
        answer: dataclass of what `make` returns; the types of the page are made of it.
        make: computes the view of a run.
        title: what it shows, as a sentence.
    """

    name: str
    answer: type
    make: Callable[[ViewSource, ViewWindow], Any]
    title: str


class ViewSource:
    """What views ask about a run.

    Args:
        run: in the store.
    """

    def __init__(self, run: StoredRun) -> None:
        self.run = run

    def ask(self, question: str, window: ViewWindow) -> tuple[list[dict[str, Any]], float, float, float]:
        """Return the answer to a question of roll-ups as rows, the width of spans, and the window in whole spans."""
        answer = self.run.ask(question, window.begin_s, window.end_s, window.spans)
        rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        return rows, answer.width_s, answer.begin_s, answer.end_s

    def limits(self, window: ViewWindow) -> tuple[float, float]:
        """Return the window for questions of tables, which may have rows where there are no events."""
        return (
            -LATEST_S if window.begin_s is None else window.begin_s,
            LATEST_S if window.end_s is None else window.end_s,
        )

    def rows(self, question: TableQuestion, begin_s: float = 0.0, end_s: float = 0.0) -> list[dict[str, Any]]:
        """Return the answer to a question of tables as rows; `begin_s` and `end_s` are its window, if it has one."""
        result = self.run.ask_tables(question, begin_s, end_s, timeout=_TIMEOUT_S, most_rows=_MOST_ROWS)
        return [dict(zip(result.columns, row, strict=True)) for row in result.rows]
