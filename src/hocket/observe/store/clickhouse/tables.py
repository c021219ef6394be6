"""The tables of a store in ClickHouse, and the SQL by which a query sees the rows of one run only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hocket.errors import RecorderError
from hocket.observe.store.clickhouse.server import ClickHouseServer
from hocket.observe.store.columns import BOOLEAN, INTEGER, NUMBER, SCHEMA_VERSION, TABLE_COLUMNS, TEXT

DERIVED = "~"
"""The sender of rows that are replaced as a whole; no sender has this name."""
_TYPES = {TEXT: "LowCardinality(String)", INTEGER: "Int64", NUMBER: "Float64", BOOLEAN: "Bool"}
_OWN = (
    "run LowCardinality(String), sender LowCardinality(String), sender_row Int64 CODEC(Delta, ZSTD), "
    "batch Int64 CODEC(Delta, ZSTD)"
)
"""Columns that the tables of runs have besides: the number of a row among all that its sender sends of the table, and
the insert that it came with."""
_TIMES = ("began_s", "at_s", "first_s")
_SPANS = {
    "level": "Int8", "bin": "Int64", "layer": "LowCardinality(String)", "process": "Int64", "rank": "Int64",
    "name": "LowCardinality(String)", "began_s": "Float64", "ended_s": "Float64",
}  # fmt: skip
"""What roll-ups are of. ClickHouse merges those that have all of it in common, when it merges their parts."""
_SUMS = {
    "count": ("sum", "Int64"), "busy_s": ("sum", "Float64"), "most_s": ("max", "Float64"), "nbytes": ("sum", "Int64"),
}  # fmt: skip
_ROLLUPS = (*_SPANS, *_SUMS)
_BATCH = "INDEX of_batch batch TYPE minmax GRANULARITY 1"
_DEDUPLICATED = "non_replicated_deduplication_window = 1000"
_OTHERS = {
    "rollups": (
        "run LowCardinality(String), batch SimpleAggregateFunction(max, Int64), "
        + ", ".join(f"{name} {kind}" for name, kind in _SPANS.items())
        + "".join(f", {name} SimpleAggregateFunction({how}, {kind})" for name, (how, kind) in _SUMS.items())
        + f", {_BATCH}",
        f"AggregatingMergeTree PRIMARY KEY (run, level, bin) ORDER BY (run, {', '.join(_SPANS)})",
    ),
    "runs": (
        "name String, description String, created DateTime64(6), is_loaded Bool", "MergeTree ORDER BY name"
    ),
    "senders": (
        "run String, sender String, table String, next_row Int64", "MergeTree ORDER BY (run, table, sender)"
    ),
    "forgotten": (
        "what LowCardinality(String), batch Int64", "ReplacingMergeTree(batch) ORDER BY what"
    ),
    "owners": (
        "id String, host String, process String, until DateTime64(3), is_over Bool",
        "MergeTree ORDER BY id TTL toDateTime(until) + INTERVAL 1 DAY",
    ),
}  # fmt: skip
INTERNAL = frozenset({*_OTHERS, "version"})
"""Tables that no query of a user may name."""


def make_tables(server: ClickHouseServer, database: str) -> None:
    """Make what a database lacks.

    Raises:
        InvalidArgument: the user may not.
        PeerFailure: the server cannot be reached.
        RecorderError: the database has tables of another version; names both.
    """
    server.do(f"CREATE DATABASE IF NOT EXISTS {database}")
    server.do(f"CREATE TABLE IF NOT EXISTS {database}.version (version Int64) ENGINE = MergeTree ORDER BY version")
    if not check_version(server, database):
        server.do(f"INSERT INTO {database}.version SELECT {SCHEMA_VERSION}")
    for table, columns in TABLE_COLUMNS.items():
        listed = ", ".join(f"{name} {_TYPES[kind]}" for name, kind in columns.items())
        order = next((name for name in _TIMES if name in columns), "sender_row")
        server.do(_create(database, table, f"{_OWN}, {listed}, {_BATCH}", f"MergeTree ORDER BY (run, {order})"))
    for table, (others, engine) in _OTHERS.items():
        server.do(_create(database, table, others, engine))


def check_version(server: ClickHouseServer, database: str) -> bool:
    """Check the version of the tables of a database, and return whether it has one.

    Raises:
        PeerFailure: the server cannot be reached.
        RecorderError: they are of another version; names both.
    """
    versions = [row[0] for row in server.ask(f"SELECT DISTINCT version FROM {database}.version").rows]
    if versions not in ([], [SCHEMA_VERSION]):
        found = ", ".join(map(str, sorted(versions)))
        raise RecorderError(
            f"database {database} has tables of version {found}, and this hocket writes {SCHEMA_VERSION}: "
            "push its runs into another database"
        )
    return bool(versions)


def rows_of_run(database: str, table: str, *, is_derived: bool = False) -> str:
    """Return SQL of the rows of a table, or of the roll-ups, that belong to the run ``{run:String}``.

    Args:
        database, table: where they are.
        is_derived: whether those that were replaced as a whole are meant: the ones of ``{batch_TABLE:Int64}``.
    """
    if table == "rollups":
        listed, chosen = ", ".join(f'"{name}"' for name in _ROLLUPS), ""
    else:
        listed = ", ".join(f'"{name}"' for name in TABLE_COLUMNS[table])
        chosen = f" AND sender {'=' if is_derived else '!='} '{DERIVED}'"
        chosen += f" AND batch = {{batch_{table}:Int64}}" if is_derived else ""
    return f"SELECT {listed} FROM {database}.{table} WHERE run = {{run:String}}{chosen}"


def with_rows_of_run(sql: str, database: str, tables: Iterable[str], derived: Mapping[str, int]) -> str:
    """Return a query in which the names of tables mean the rows of one run.

    Args:
        sql: names them without a database.
        database: where they are.
        tables: those that it names.
        derived: the batch of tables that were replaced as a whole, by name.
    """
    parts = [f"{each} AS ({rows_of_run(database, each, is_derived=each in derived)})" for each in tables]
    if not parts:
        return sql
    rest = sql.removeprefix("WITH ")
    return f"WITH {', '.join(parts)}{', ' if rest != sql else ' '}{rest}"


def _create(database: str, table: str, columns: str, engine: str) -> str:
    return f"CREATE TABLE IF NOT EXISTS {database}.{table} ({columns}) ENGINE = {engine} SETTINGS {_DEDUPLICATED}"
