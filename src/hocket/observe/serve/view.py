"""What a view of the page is: a file in `views/` that declares one as `VIEW`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from hocket.errors import InvalidArgument
from hocket.observe.store.interface import RunInStore, RunStore
from hocket.observe.store.rollups import LATEST_S
from hocket.observe.store.table_questions import TableQuestion

if TYPE_CHECKING:
    import ibis.expr.types as ir

DEFAULT_SPANS, MOST_SPANS = 600, 4000
_TIMEOUT_S = 30.0
_MOST_ROWS = 100_000
_MOST_SAMPLES = 60_000
MOST_THINNED_ROWS = 400_000
"""Of `thinned`: each series has its first and its last row."""
_MOST_COMMAND = 2000


def thinned(rows: ir.Table, series: Sequence[str], time: str = "at_s") -> ir.Table:
    """Return at most about `_MOST_SAMPLES` rows, however long a run is: of each series each n-th row, and the last one.

    Args:
        rows: of series.
        series: columns by which they differ.
        time: column with the time of a row.
    """
    import ibis

    own, whole = ibis.window(group_by=list(series), order_by=time), ibis.window()
    numbered = rows.mutate(
        number_=ibis.row_number().over(own),
        length_=rows.count().over(ibis.window(group_by=list(series))),
        step_=rows.count().over(whole) // _MOST_SAMPLES + 1,
    )
    chosen = numbered.filter((numbered.number_ % numbered.step_ == 0) | (numbered.number_ == numbered.length_ - 1))
    return chosen.drop("number_", "length_", "step_")


@dataclass(frozen=True)
class ViewWindow:
    """The part of a run that a view shows.

    Args:
        begin_s, end_s: seconds since the run began; None: from the first or to the last event.
        spans: at most so many spans of time.
        other: name of another run, for views that compare; "": none.
    """

    begin_s: float | None = None
    end_s: float | None = None
    spans: int = DEFAULT_SPANS
    other: str = ""


@dataclass(frozen=True)
class View:
    """A view.

    Args:
        name: in the address.
        answer: dataclass of what `make` returns; the types of the page are made of it.
        make: computes the view of a run.
        title: what it shows, as a sentence.
        num_spans: how many spans of time it shows at most, where a request names no number.
        is_of_run: whether it shows one run only, and no others of the store.
    """

    name: str
    answer: type
    make: Callable[[ViewSource, ViewWindow], Any]
    title: str
    num_spans: int = DEFAULT_SPANS
    is_of_run: bool = True


class ViewSource:
    """What views ask about a run.

    Args:
        run: in the store.
        owner: of the store.
    """

    def __init__(self, run: RunInStore, owner: RunStore) -> None:
        self.run = run
        self._owner = owner

    @property
    def command(self) -> str:
        """What was run, as its sender says; "": unknown."""
        words = self._described.get("command")
        return " ".join(map(str, words))[:_MOST_COMMAND] if isinstance(words, list) else ""

    @property
    def began_unix_s(self) -> float | None:
        """When it began, in seconds since 1970, as its sender says."""
        began = self._described.get("began_unix_s")
        return float(began) if isinstance(began, (int, float)) and isfinite(began) else None

    @property
    def _described(self) -> dict[str, Any]:
        return self.run.description if isinstance(self.run.description, dict) else {}

    def run_names(self) -> list[str]:
        """Return the names of all runs of the store, the one that was made last first."""
        return self._owner.run_names()

    def of(self, name: str) -> ViewSource:
        """Return what views ask about another run.

        Raises:
            InvalidArgument: there is no such run.
        """
        run = self._owner.find_run(name)
        if run is None:
            raise InvalidArgument(f"there is no run {name!r:.120} in this store")
        return ViewSource(run, self._owner)

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

    def rows(
        self, question: TableQuestion, begin_s: float = 0.0, end_s: float = 0.0, *, most_rows: int = _MOST_ROWS
    ) -> list[dict[str, Any]]:
        """Return the answer to a question of tables as rows; `begin_s` and `end_s` are its window, if it has one."""
        result = self.run.ask_tables(question, begin_s, end_s, timeout=_TIMEOUT_S, most_rows=most_rows)
        return [dict(zip(result.columns, row, strict=True)) for row in result.rows]
