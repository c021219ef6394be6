"""What the server and its page need of a store of runs, wherever its rows are: in files, or in a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from hocket.observe.store.connection import QueryResult
from hocket.observe.store.table_questions import TableQuestion


@dataclass(frozen=True)
class IngestAnswer:
    """What became of rows.

    Args:
        next_row: the row of the sender that is expected next.
        num_stored: how many of the rows are sealed now, by this call or by one before.
        is_pending: whether they were sent before and are not yet sealed: ask again.
    """

    next_row: int
    num_stored: int
    is_pending: bool = False


@dataclass(frozen=True)
class StoreAnswer:
    """The answer to a question about a window.

    Args:
        width_s: length of a span; "bin" times it is the begin of a span in seconds since the run began.
        begin_s, end_s: the window, in whole spans.
        columns: their names.
        rows: values by column.
    """

    width_s: float
    begin_s: float
    end_s: float
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


class RunInStore(Protocol):
    """One run; its methods can be called by any thread."""

    on_rollup: Callable[[Any, Any], object] | None
    """Is called with the roll-up of rows, and the rows, after they were stored."""

    @property
    def name(self) -> str:
        """Its name in the store."""

    @property
    def description(self) -> Any:
        """JSON that says which run it is; checked by whoever reads it."""

    def next_row(self, table: str, sender: str) -> int:
        """Return the number of the first row of a sender that is not yet stored."""

    def num_rows(self) -> dict[str, int]:
        """Return the number of rows of each table that has some."""

    def extent(self) -> tuple[float, float]:
        """Return the begin of the first and the end of the last event; (0, 0) if the run has no events."""

    def ask(
        self, question: str, begin_s: float | None = None, end_s: float | None = None, num_spans: int = 600
    ) -> StoreAnswer:
        """Answer a question from the roll-ups.

        Args:
            question: one of `QUESTIONS`.
            begin_s, end_s: window in seconds since the run began; None: from the first or to the last event.
            num_spans: at most so many spans, which selects the level.

        Raises:
            InvalidArgument: the question is unknown, or the window is not valid.
            QueryTimeout: it took too long.
        """

    def query(self, sql: str, *, timeout: float, most_rows: int) -> QueryResult:
        """Answer a query in SQL, which comes from a stranger: it can read the tables of this run and nothing else.

        Raises:
            InvalidArgument: the query is wrong, would read or do something else, or has more rows.
            QueryTimeout: it took longer.
        """

    def ask_tables(
        self, question: TableQuestion, begin_s: float, end_s: float, *, timeout: float, most_rows: int
    ) -> QueryResult:
        """Answer a question of tables.

        Args:
            question: see `table_sql`.
            begin_s, end_s: its window, if it has one.
            timeout, most_rows: as of `query`.
        """

    def write_table(self, table: str, path: Path) -> None:
        """Write all rows of a table into one Parquet file."""

    def replace_tables(self, tables: Mapping[str, Any]) -> None:
        """Have tables asked instead of what is stored of them: they change as a whole while a run goes on.

        Args:
            tables: Arrow tables with the schema of the store, by name.
        """


class RunStore(Protocol):
    """A store that this process owns; a context manager. Its methods can be called by any thread."""

    @property
    def folder(self) -> Path:
        """A folder of this user for the token and the address of the server."""

    @property
    def place(self) -> str:
        """Where its rows are, to be shown: without a password."""

    @property
    def problems(self) -> dict[str, str]:
        """What went wrong while nobody asked, by place: it is tried again."""

    def __enter__(self) -> RunStore: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def report(self, place: str, problem: str) -> None:
        """Show a problem of something that goes on beside the store; "": it is gone."""

    def run_names(self) -> list[str]:
        """Return the names of all runs, the one that was made last first."""

    def add_run(self, name: str, description: dict[str, Any]) -> bool:
        """Make a run, and return whether it is new.

        Raises:
            InvalidArgument: the name is not valid, the store has another run of this name, or too many runs.
        """

    def find_run(self, name: str) -> RunInStore | None:
        """Return a run; None if the store has no run of this name.

        Raises:
            InvalidArgument: the name is not valid.
        """

    def remove_run(self, name: str) -> None:
        """Remove a run and all its rows; whoever asks it just now may fail."""

    def is_loaded(self, name: str) -> bool:
        """Return whether the store has all of a run that a loader has brought."""

    def mark_loaded(self, name: str) -> None:
        """Note that the store has all of a run that a loader has brought."""

    def submit(
        self, run: RunInStore, table: str, sender: str, first_row: int, rows: Any, nbytes: int
    ) -> Future[IngestAnswer]:
        """Have rows stored, unless they already are: once, and answered for only when they are.

        Args:
            run: from `find_run`.
            table: which rows they are.
            sender: who sends them; a name as of a run.
            first_row: number of the first one, of all that this sender sends of this table.
            rows: from `read_batch`.
            nbytes: about how much memory they take.

        Raises:
            InvalidArgument: the name of the sender is not valid, or a number is negative.
            ResourceExhausted: too much waits for being stored: send it again later.
        """


def answer_waiting(done: Future[IngestAnswer], result: IngestAnswer | Exception) -> None:
    """Give an answer to whoever still waits for it."""
    if done.done() or not done.set_running_or_notify_cancel():
        return
    if isinstance(result, Exception):
        done.set_exception(result)
    else:
        done.set_result(result)
