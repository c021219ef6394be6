"""One run in a ClickHouse database: its questions, and how far each sender has come."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from hocket.observe.store.arrow_batches import arrow, schema_of
from hocket.observe.store.clickhouse.rows import as_table
from hocket.observe.store.clickhouse.stored_query import bound_to_run, limits_of_rows, query_run_rows
from hocket.observe.store.clickhouse.tables import DERIVED, rows_of_run, with_rows_of_run
from hocket.observe.store.columns import TABLE_COLUMNS
from hocket.observe.store.interface import StoreAnswer
from hocket.observe.store.overview import sql_of
from hocket.observe.store.rollups import LONG
from hocket.observe.store.senders import SenderNumbers, SenderRows
from hocket.observe.store.spans import Extent, choose_spans, seconds_of
from hocket.observe.store.table_questions import TableQuestion, table_sql

if TYPE_CHECKING:
    import pyarrow as pa

    from hocket.observe.store.clickhouse.server import ClickHouseServer
    from hocket.observe.store.connection import QueryResult

_TABLE_S = 120.0


class ClickHouseRun:
    """A run; its methods can be called by any thread.

    Args:
        server, database: where its rows are.
        name: of it.
        description: what its sender has said of it.
        replace: inserts rows that replace others as a whole, and returns the batch that they came with; see
            `replace_tables`.

    Raises:
        PeerFailure: the server cannot be reached.
    """

    def __init__(
        self, server: ClickHouseServer, database: str, name: str, description: Any,
        replace: Callable[[ClickHouseRun, str, pa.Table], int],
    ) -> None:  # fmt: skip
        self._server, self._database = server, database
        self._name, self._description = name, description
        self._replace = replace
        self._lock = Lock()
        self._derived: dict[str, int] = {}
        self._num_derived: dict[str, int] = {}
        self.on_rollup: Callable[[Any, Any], object] | None = None
        self.senders = SenderNumbers(name, {})
        self.reload()

    @property
    def name(self) -> str:
        """Its name in the store."""
        return self._name

    @property
    def description(self) -> Any:
        """JSON that says which run it is."""
        return self._description

    def reload(self) -> None:
        """Read again how far each sender has come, and what the run has.

        A row has its number and its sender beside it, so the rows themselves say which are there. Where retention has
        removed rows, the table of senders does: it is written before.
        """
        next_rows, num_rows, extent = self._read()
        with self._lock:
            self._num_rows, self._extent = num_rows, extent
        self.senders.restart(next_rows)

    def recount(self) -> None:
        """Read again what the run has, after some of it was removed; while no rows are inserted."""
        _, num_rows, extent = self._read()
        with self._lock:
            self._num_rows, self._extent = num_rows, extent

    def _read(self) -> tuple[dict[tuple[str, str], int], dict[str, int], Extent]:
        run = {"run": self._name}
        counted = " UNION ALL ".join(
            f"SELECT '{table}' AS name, sender, max(sender_row) + 1 AS next_row, count() AS num_rows "
            f"FROM {self._database}.{table} WHERE run = {{run:String}} AND sender != '{DERIVED}' GROUP BY sender"
            for table in TABLE_COLUMNS
        )
        past = f"""SELECT "table", sender, max(next_row), 0 FROM {self._database}.senders
            WHERE run = {{run:String}} GROUP BY "table", sender"""
        next_rows: dict[tuple[str, str], int] = {}
        num_rows: dict[str, int] = {}
        for table, sender, next_row, count in (*self._server.ask(counted, run).rows, *self._server.ask(past, run).rows):
            next_rows[table, sender] = max(next_rows.get((table, sender), 0), int(next_row))
            num_rows[table] = num_rows.get(table, 0) + int(count)
        return next_rows, num_rows, self._read_extent()

    def note_stored(self, table: str, piece: SenderRows) -> None:
        """Note that claimed rows are stored."""
        with self._lock:
            self._num_rows[table] = self._num_rows.get(table, 0) + piece.num_rows
        self.senders.note_stored(table, piece)

    def note_rollups(self, known: Extent) -> None:
        """Note that roll-ups were stored."""
        with self._lock:
            self._extent = self._extent.joined(known)

    def next_row(self, table: str, sender: str) -> int:
        """Return the number of the first row of a sender that is not yet stored."""
        return self.senders.next_row(table, sender)

    def num_rows(self) -> dict[str, int]:
        """Return the number of rows of each table that has some."""
        with self._lock:
            return {**self._num_rows, **self._num_derived}

    def extent(self) -> tuple[float, float]:
        """Return the begin of the first and the end of the last event; (0, 0) if the run has no events."""
        with self._lock:
            return self._extent.limits

    def ask(
        self, question: str, begin_s: float | None = None, end_s: float | None = None, num_spans: int = 600
    ) -> StoreAnswer:
        """Answer a question from the roll-ups; see `RunInStore.ask`."""
        chosen = choose_spans(begin_s, end_s, num_spans, self.extent(), self._num_long_in)
        sql = sql_of(question, "clickhouse", has_long=bool(chosen.num_long))
        result = self._server.ask(
            with_rows_of_run(sql, self._database, ["rollups"], {}), {"run": self._name, **chosen.parameters}
        )
        return StoreAnswer(chosen.width_s, chosen.begin_s, chosen.end_s, result.columns, result.rows)

    def query(self, sql: str, *, timeout: float, most_rows: int) -> QueryResult:
        """Answer a query in ClickHouse's SQL, which comes from a stranger; see `query_run_rows`."""
        return query_run_rows(
            self._server, self._database, self._name, sql, self.derived, timeout=timeout, most_rows=most_rows
        )

    def ask_tables(
        self, question: TableQuestion, begin_s: float, end_s: float, *, timeout: float, most_rows: int
    ) -> QueryResult:
        """Answer a question of tables; see `RunInStore.ask_tables`."""
        sql, names = table_sql(question, "clickhouse")
        window = {"begin_s": begin_s, "end_s": end_s}
        named = set(re.findall(r"[a-z_]+", sql)) & set(TABLE_COLUMNS)
        text, parameters = bound_to_run(sql, self._database, self._name, named, self.derived)
        chosen = {**parameters, **{name: window[name] for name in names}}
        return self._server.ask(text, chosen, timeout=timeout, settings=limits_of_rows(most_rows))

    def write_table(self, table: str, path: Path) -> None:
        """Write all rows of a table into one Parquet file.

        Raises:
            OSError: it cannot be written.
            PeerFailure: the server cannot be reached.
        """
        pa, schema = arrow(), schema_of(table)
        text = f"SELECT * FROM ({rows_of_run(self._database, table)})"
        with pa.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
            for batch in self._server.batches(text, {"run": self._name}, _TABLE_S):
                writer.write_table(as_table(table, batch))

    def replace_tables(self, tables: Mapping[str, Any]) -> None:
        """Have tables asked instead of what is stored of them; see `RunInStore.replace_tables`.

        They are inserted beside the others, and only questions that begin afterwards ask them.
        """
        for table, rows in tables.items():
            batch = self._replace(self, table, rows)
            with self._lock:
                self._derived[table], self._num_derived[table] = batch, int(rows.num_rows)

    @property
    def derived(self) -> dict[str, int]:
        """The batch of each table that was replaced as a whole."""
        with self._lock:
            return dict(self._derived)

    def _num_long_in(self, begin_s: float, end_s: float) -> int:
        with self._lock:
            if not self._extent.num_long:
                return 0
        sql = f"""SELECT count() FROM {self._database}.rollups WHERE run = {{run:String}} AND level = {LONG}
            AND began_s < {{end_s:Float64}} AND ended_s >= {{begin_s:Float64}}"""
        rows = self._server.ask(sql, {"run": self._name, "begin_s": begin_s, "end_s": end_s}).rows
        return int(rows[0][0])

    def _read_extent(self) -> Extent:
        place, run = f"FROM {self._database}.rollups WHERE run = {{run:String}} AND level =", {"run": self._name}
        ((first, last),) = self._server.ask(f"SELECT min(bin), max(bin) {place} 0", run).rows
        ((begin_s, end_s, count),) = self._server.ask(
            f"SELECT min(began_s), max(ended_s), count() {place} {LONG}", run
        ).rows
        found = Extent() if first is None else Extent(*seconds_of(int(first), int(last)))
        return found.joined(Extent(float(begin_s), float(end_s), int(count))) if count else found
