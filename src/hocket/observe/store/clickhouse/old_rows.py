"""What retention removes from a database: rows and roll-ups of rounds before one.

First it is noted what is removed, then it is: so senders go on where they were, and roll-ups that are missing because
they were removed are not taken for those of an owner that was killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic, time
from typing import TYPE_CHECKING

from hocket.errors import InvalidArgument
from hocket.observe.store.clickhouse.tables import DERIVED
from hocket.observe.store.columns import TABLE_COLUMNS

if TYPE_CHECKING:
    from hocket.observe.store.clickhouse.server import ClickHouseServer
    from hocket.observe.store.owner import Retention

_SHARE, _MOST_S = 0.05, 3600.0
"""What is too old is removed when a twentieth of its time has passed, or an hour: it costs the server a while."""
_BYTES_S = 300.0
"""Bytes are counted so often."""
_COUNT_S = 120.0
_PARTS = 1000
"""Rounds are counted in so many parts of time, then those of one part again."""
_ROLLUPS = "rollups"
_EVENTS = f"sender != '{DERIVED}'"
"""What retention is about: other rows are replaced as a whole."""


@dataclass(frozen=True)
class FirstKept:
    """The first rounds that are kept, of events and of roll-ups; 0: all are."""

    events: int
    rollups: int


class OldRows:
    """Removes what is not kept; for one thread.

    Args:
        server, database: where it is.
        retention: what is kept how long.

    Raises:
        InvalidArgument: it has a limit of bytes, and the user may not read sizes.
        PeerFailure: the server cannot be reached.
    """

    def __init__(self, server: ClickHouseServer, database: str, retention: Retention) -> None:
        self._server, self._database, self._limits = server, database, retention
        kept = [_SHARE * each for each in (retention.events_s, retention.rollups_s) if each is not None]
        if retention.events_nbytes is not None:
            kept.append(_BYTES_S)
            self._sizes()
        self._period_s = min([*kept, _MOST_S]) if kept else float("inf")
        self._removed_s = float("-inf")

    @property
    def are_due(self) -> bool:
        """Whether it is time to remove some."""
        return monotonic() - self._removed_s > self._period_s

    def first_kept(self) -> FirstKept:
        """Return what is to be kept; errors are those of the server."""
        now, limits = time(), self._limits
        events = 0 if limits.events_nbytes is None else self._first_that_fit(limits.events_nbytes)
        if limits.events_s is not None:
            events = max(events, int((now - limits.events_s) * 1e6))
        return FirstKept(events, 0 if limits.rollups_s is None else int((now - limits.rollups_s) * 1e6))

    def remove(self, first: FirstKept) -> None:
        """Remove what came before, while no rounds are written; errors are those of the server."""
        self._remove_events(first.events)
        self._remove_rollups(first.rollups)
        self._removed_s = monotonic()

    def _remove_events(self, before: int) -> None:
        if not before:
            return
        for table in TABLE_COLUMNS:
            place, chosen = f"{self._database}.{table}", {"before": before}
            old = f"batch < {{before:Int64}} AND {_EVENTS}"
            if not self._server.ask(f"SELECT count() FROM {place} WHERE {old}", chosen).rows[0][0]:
                continue
            self._server.do(
                f"""INSERT INTO {self._database}.senders SELECT run, sender, '{table}', max(sender_row) + 1
                FROM {place} WHERE {old} GROUP BY run, sender""",
                chosen,
            )
            self._server.remove(table, old, chosen)

    def _first_that_fit(self, most_nbytes: int) -> int:
        """The first round of the last ones that have at most so many bytes together; 0: all do."""
        sizes = self._sizes()
        if sum(num_rows * row_nbytes for num_rows, row_nbytes in sizes.values()) <= most_nbytes:
            return 0
        # Rows that were removed are in the files until ClickHouse merges them, so those that are left are counted.
        listed = " UNION ALL ".join(
            f"SELECT batch, {row_nbytes!r} AS row_nbytes FROM {self._database}.{table} WHERE {_EVENTS}"
            for table, (_, row_nbytes) in sizes.items()
        )
        ((first, last),) = self._server.ask(f"SELECT min(batch), max(batch) FROM ({listed})", timeout=_COUNT_S).rows
        first, after, rest = first or 0, (last or 0) + 1, float(most_nbytes)
        while True:
            length = -(-(after - first) // _PARTS)
            sql = f"""SELECT intDiv(batch - {{first:Int64}}, {{length:Int64}}) AS part, sum(row_nbytes) FROM ({listed})
                WHERE batch >= {{first:Int64}} AND batch < {{after:Int64}} GROUP BY part ORDER BY part DESC"""
            chosen = {"first": first, "after": after, "length": length}
            for part, nbytes in self._server.ask(sql, chosen, timeout=_COUNT_S).rows:
                if nbytes > rest:
                    first, after = first + part * length, min(first + (part + 1) * length, after)
                    break
                rest -= nbytes
            else:
                return int(first)
            if length == 1:
                return int(after)

    def _sizes(self) -> Mapping[str, tuple[int, float]]:
        """Of each table with rows of events: how many are in its files, and how many bytes one has there."""
        sql = """SELECT table, sum(rows), sum(bytes_on_disk) / sum(rows) FROM system.parts
            WHERE database = {database:String} AND active GROUP BY table HAVING sum(rows) > 0"""
        try:
            found = self._server.ask(sql, {"database": self._database}).rows
        except InvalidArgument as error:
            raise InvalidArgument(f"a limit of bytes needs GRANT SELECT ON system.parts: {error}") from None
        return {str(table): (int(rows), float(size)) for table, rows, size in found if table in TABLE_COLUMNS}

    def _remove_rollups(self, before: int) -> None:
        if not before:
            return
        place, chosen = f"{self._database}.{_ROLLUPS}", {"before": before}
        if self._server.ask(f"SELECT count() FROM {place} WHERE batch < {{before:Int64}}", chosen).rows[0][0]:
            self._server.do(f"INSERT INTO {self._database}.forgotten SELECT '{_ROLLUPS}', {{before:Int64}}", chosen)
            self._server.remove(_ROLLUPS, "batch < {before:Int64}", chosen)


def first_kept_rollups(server: ClickHouseServer, database: str) -> int:
    """Return the first round whose roll-ups retention has not removed; 0: it has removed none."""
    sql = f"SELECT max(batch) FROM {database}.forgotten WHERE what = '{_ROLLUPS}'"
    return int(server.ask(sql).rows[0][0] or 0)
