"""How rows get into ClickHouse: once, and with their roll-ups, whoever is killed when.

Rows that arrive together are a round. A round is one insert for each table, then one for the roll-ups of all of them;
after that its senders get their answers, and only then the next round begins. Rounds have increasing numbers, which
rows and roll-ups carry as `batch`. Each insert is one block, so it is there as a whole or not at all.

- The connection fails, and nobody knows whether an insert was carried out: it is sent again, with the same token. The
  server leaves out what it was given before with a token (`insert_deduplication_token`). A token names the owner and
  the round, not the rows: a run that was removed may have the same rows again.
- The owner is killed between the inserts of a round: its rows that are there are known by their sender and number, and
  a sender that has got no answer is told by the next owner that they are stored. Their roll-ups may be missing. Only
  the last round can lack them, and it lacks all of them or none: so the next owner looks for roll-ups of the highest
  `batch` of the tables that have some, and makes them from its rows if they are missing and were not removed.
- The lease is over before the round is: the owner forgets the round, as if it had been killed, and starts again with
  what is stored, once it has the lease again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from threading import Event
from time import time
from typing import TYPE_CHECKING

from hocket.errors import HocketError, InvalidState, PeerFailure, QueryTimeout, RecorderError, ResourceExhausted
from hocket.observe.store.arrow_batches import arrow, schema_of
from hocket.observe.store.clickhouse.old_rows import first_kept_rollups
from hocket.observe.store.clickhouse.rows import as_stored, as_table, with_columns
from hocket.observe.store.clickhouse.run import ClickHouseRun
from hocket.observe.store.clickhouse.tables import DERIVED
from hocket.observe.store.columns import TABLE_COLUMNS
from hocket.observe.store.queued_rows import QueuedRows
from hocket.observe.store.rollups import NAMES_OF_LAYERS, rollup_of
from hocket.observe.store.spans import extent_of

if TYPE_CHECKING:
    import pyarrow as pa

    from hocket.observe.store.clickhouse.lease import Lease
    from hocket.observe.store.clickhouse.server import ClickHouseServer

_AGAIN = (PeerFailure, QueryTimeout, ResourceExhausted)
"""The same insert may be carried out later."""
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.2, 2.0
_REPAIR_S = 120.0


RoundRows = QueuedRows[ClickHouseRun]


class RoundWriter:
    """Stores rounds, one after the other; for one thread at a time.

    Args:
        server, database: where.
        lease: without which nothing is inserted.
        ident: name of the owner.
        is_closing: ends the attempts.
        on_lost: is called with the error while an insert has to be sent again, and with None when it was carried out.
    """

    def __init__(
        self, server: ClickHouseServer, database: str, lease: Lease, ident: str, is_closing: Event,
        on_lost: Callable[[Exception | None], object],
    ) -> None:  # fmt: skip
        self._server, self._database, self._lease, self._ident = server, database, lease, ident
        self._is_closing, self._on_lost = is_closing, on_lost
        self._last = 0

    def write(self, queued: Sequence[RoundRows]) -> list[tuple[RoundRows, Exception | None]]:
        """Store a round, and return what became of its rows: None: they are stored.

        Raises:
            InvalidState: the lease is over: what is stored has to be read again.
            PeerFailure: the store is being closed while the server cannot be reached.
        """
        batch = self.next_batch()
        by_table: dict[str, list[RoundRows]] = defaultdict(list)
        for each in queued:
            by_table[each.table].append(each)
        results: list[tuple[RoundRows, Exception | None]] = []
        for table, group in by_table.items():
            results += self._insert_group(table, group, batch, f"{self._ident}/{batch}/{table}")
        stored: dict[tuple[str, str], list[RoundRows]] = defaultdict(list)
        for each, error in results:
            if error is None and each.table in NAMES_OF_LAYERS:
                stored[each.run.name, each.table].append(each)
        rollups = []
        for (_, table), group in stored.items():
            rows = arrow().concat_tables([each.piece.rows for each in group])
            rollups.append((group[0].run, rollup_of(table, rows), rows))
        self._insert_rollups([(run.name, rollup) for run, rollup, _ in rollups], batch)
        for each, error in results:
            if error is None:
                each.run.note_stored(each.table, each.piece)
        for run, rollup, rows in rollups:
            run.note_rollups(extent_of(rollup))
            if run.on_rollup is not None:
                run.on_rollup(rollup, rows)
        return results

    def replace(self, run: ClickHouseRun, table: str, rows: pa.Table) -> int:
        """Insert rows that replace others as a whole, and return their batch; errors are those of the server."""
        batch = self.next_batch()
        self._lease.check()
        if rows.num_rows:
            self._server.insert(table, as_stored(run.name, rows, batch), f"{self._ident}/{batch}/{table}")
        return batch

    def repair(self) -> None:
        """Make the roll-ups that an owner that was killed has not stored; with the lease.

        Raises:
            PeerFailure: the server cannot be reached.
        """
        self._last = max(self._last, self._highest(("rollups", *TABLE_COLUMNS), "1"))
        layers = tuple(NAMES_OF_LAYERS)
        batch = self._highest(layers, f"sender != '{DERIVED}'")
        if not batch or batch < first_kept_rollups(self._server, self._database):
            return
        if self._highest(("rollups",), f"batch >= {batch}"):
            return
        rollups = []
        for table in layers:
            names = f"SELECT DISTINCT run FROM {self._database}.{table} WHERE batch = {{batch:Int64}}"
            for (name,) in self._server.ask(names, {"batch": batch}).rows:
                rollups.append((str(name), rollup_of(table, self._rows_of_batch(table, str(name), batch))))
        self._insert_rollups(rollups, batch)

    def _highest(self, tables: Sequence[str], condition: str) -> int:
        """The highest batch of tables; 0: they have no rows."""
        parts = (f"SELECT max(batch) AS highest FROM {self._database}.{each} WHERE {condition}" for each in tables)
        sql = f"SELECT max(highest) FROM ({' UNION ALL '.join(parts)})"
        return int(self._server.ask(sql, timeout=_REPAIR_S).rows[0][0] or 0)

    def next_batch(self) -> int:
        """Return the next number of a round: microseconds since 1970, and never a smaller one than before."""
        self._last = max(self._last + 1, int(time() * 1e6))
        return self._last

    def _rows_of_batch(self, table: str, run: str, batch: int) -> pa.Table:
        pa, schema = arrow(), schema_of(table)
        listed = ", ".join(f'"{name}"' for name in TABLE_COLUMNS[table])
        sql = f"SELECT {listed} FROM {self._database}.{table} WHERE run = {{run:String}} AND batch = {{batch:Int64}}"
        found = self._server.batches(sql, {"run": run, "batch": batch}, _REPAIR_S)
        parts = [as_table(table, each) for each in found]
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def _insert_group(
        self, table: str, group: list[RoundRows], batch: int, token: str
    ) -> list[tuple[RoundRows, Exception | None]]:
        """Insert rows of a table; if the server refuses them, those of each sender, so that none fails another."""
        pieces = [as_stored(each.run.name, each.piece.rows, batch, each.piece) for each in group]
        try:
            self._insert(table, arrow().concat_tables(pieces), token)
        except HocketError as error:
            if isinstance(error, (InvalidState, *_AGAIN)):
                raise
            by_sender: dict[tuple[str, str], list[RoundRows]] = defaultdict(list)
            for each in group:
                by_sender[each.run.name, each.piece.sender].append(each)
            if len(by_sender) == 1:
                return [(each, RecorderError(f"the rows cannot be stored: {error}")) for each in group]
            found: list[tuple[RoundRows, Exception | None]] = []
            for number, own in enumerate(by_sender.values()):
                found += self._insert_group(table, own, batch, f"{token}/{number}")
            return found
        return [(each, None) for each in group]

    def _insert_rollups(self, rollups: Sequence[tuple[str, pa.Table]], batch: int) -> None:
        parts = [with_columns(rollup, {"run": run, "batch": batch}) for run, rollup in rollups if rollup.num_rows]
        if parts:
            self._insert("rollups", arrow().concat_tables(parts), f"{self._ident}/{batch}/rollups", is_needed=True)

    def _insert(self, table: str, rows: pa.Table, token: str, *, is_needed: bool = False) -> None:
        """Insert rows, again and again while the server is away.

        Args:
            table, rows, token: as of `ClickHouseServer.insert`.
            is_needed: whether nothing may go on without, whatever the server says.
        """
        pause = _FIRST_PAUSE_S
        while True:
            self._lease.check()
            try:
                self._server.insert(table, rows, token)
            except HocketError as error:
                if not is_needed and not isinstance(error, _AGAIN):
                    raise
                self._on_lost(error)
                if self._is_closing.wait(pause):
                    raise PeerFailure(f"the store is closed before its rows are stored: {error}") from None
                pause = min(2 * pause, _MOST_PAUSE_S)
            else:
                self._on_lost(None)
                return
