"""SQL over a run of a store: DuckDB over the segments, with or without the owner's process."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hocket.errors import InvalidArgument, RecorderError
from hocket.observe.store.clickhouse.address import is_clickhouse, parse_address
from hocket.observe.store.columns import BOOLEAN, INTEGER, NUMBER, TABLE_COLUMNS, TEXT
from hocket.observe.store.connection import QueryResult, check_query, connect, run_query
from hocket.observe.store.segments import RUN_FILE, RUN_NAME, STORE_FILE, check_store, find_segments, no_such_run

_TYPES = {TEXT: "VARCHAR", INTEGER: "BIGINT", NUMBER: "DOUBLE", BOOLEAN: "BOOLEAN"}


def query_stored(
    store: str | Path, run: str, sql: str, *, timeout: float = 30.0, most_rows: int = 1_000_000
) -> QueryResult:
    """Ask a run of a store in SQL, as `query_run` asks a recorded run; no owner need run.

    Args:
        store: folder that an owner (`hocket observe serve --store`) has written, or the address of a database of
            ClickHouse that one has, such as ``clickhouse://user@host:8123/runs``.
        run: name of the run.
        sql: as of `query_run`; for ClickHouse, in its SQL.
        timeout, most_rows: as of `query_run`.

    Raises:
        AuthenticationError, PeerFailure: ClickHouse refuses the password, or cannot be reached.
        InvalidArgument: there is no such run, or the query is wrong, is not one query, would change something or read
            another file, or has more rows.
        MissingPackage: DuckDB, pyarrow or what ClickHouse needs is not installed.
        QueryTimeout: it took longer.
        RecorderError: a file is damaged, or the store is of another version; names it.

    Examples:
        >>> from hocket import observe
        >>> from hocket.observe.store.owner import StoreOwner
        >>> with StoreOwner("stored") as owner:
        ...     owner.add_run("run-1", {})
        True
        >>> observe.query_stored("stored", "run-1", "SELECT count(*) FROM operations").rows
        ((0,),)
    """
    if isinstance(store, str) and is_clickhouse(store):
        from hocket.observe.store.clickhouse.stored_query import query_database

        return query_database(parse_address(store), run, sql, timeout=timeout, most_rows=most_rows)
    if not (Path(store) / STORE_FILE).is_file():
        raise InvalidArgument(f"{store} is no store: hocket observe serve --store makes one")
    check_store(Path(store))
    runs = Path(store) / "runs"
    folder = runs / run
    if not RUN_NAME.fullmatch(run) or not (folder / RUN_FILE).is_file():
        known = sorted(each.parent.name for each in runs.glob(f"*/{RUN_FILE}"))
        raise no_such_run(store, run, known)
    segments = {table: [each.path for each in find_segments(folder / table)] for table in _named_tables(sql)}
    return query_segments(folder, segments, sql, timeout=timeout, most_rows=most_rows)


def query_segments(
    folder: Path, segments: dict[str, list[Path]], sql: str, *, timeout: float, most_rows: int,
    parameters: Mapping[str, object] | None = None, replaced: Mapping[str, Any] | None = None,
) -> QueryResult:  # fmt: skip
    """Ask the tables of a run in SQL.

    Args:
        folder: of the run.
        segments: files of each table; the query can read no others.
        sql, timeout, most_rows: as of `query_run`.
        parameters: of the query, by name.
        replaced: Arrow tables that are asked instead of the segments, by name.
    """
    check_query(sql)
    named = _named_tables(sql)  # a damaged file of another table does no harm
    with connect() as connection:
        import duckdb

        empty: list[str] = []
        for table in TABLE_COLUMNS:
            if (rows := (replaced or {}).get(table)) is not None and table in named:
                connection.register("given_rows", rows)
                connection.execute(f"CREATE TABLE {table} AS SELECT * FROM given_rows")
                connection.unregister("given_rows")
            elif (paths := segments.get(table)) and table in named:
                try:
                    connection.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet([{_listed(paths)}])")
                except duckdb.Error as error:
                    if not folder.is_dir():
                        raise RecorderError(f"{folder}: this run has been removed") from None
                    raise RecorderError(f"{folder}: table {table} cannot be read: {error}") from None
            else:
                empty.append(table)
        connection.execute(";".join(map(_empty_table, empty)))
        readable = [path for table, paths in segments.items() if table in named for path in paths]
        connection.execute(f"SET allowed_paths = [{_listed(readable)}]")
        return run_query(connection, sql, timeout, most_rows, parameters)


def _empty_table(table: str) -> str:
    columns = ", ".join(f'"{name}" {_TYPES[kind]}' for name, kind in TABLE_COLUMNS[table].items())
    return f"CREATE TABLE {table} ({columns})"


def _named_tables(sql: str) -> set[str]:
    return set(re.findall(r"[a-z_]+", sql.lower())) & set(TABLE_COLUMNS)


def _listed(paths: Iterable[Path]) -> str:
    return ", ".join("'" + str(each).replace("'", "''") + "'" for each in paths)
