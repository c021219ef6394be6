"""SQL over a run in a database of ClickHouse, with or without the owner's process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hocket.errors import InvalidArgument
from hocket.observe.store.clickhouse.address import ClickHouseAddress
from hocket.observe.store.clickhouse.server import ClickHouseServer
from hocket.observe.store.clickhouse.tables import check_version, with_rows_of_run
from hocket.observe.store.clickhouse.user_query import checked_query
from hocket.observe.store.connection import QueryResult
from hocket.observe.store.segments import no_such_run

_MOST_NBYTES = 256 << 20
"""Of an answer."""
_MEMORY_NBYTES = 1 << 30


def query_database(
    address: ClickHouseAddress, run: str, sql: str, *, timeout: float, most_rows: int
) -> QueryResult:  # fmt: skip
    """Ask a run in ClickHouse's SQL; no owner need run.

    Tables that an owner replaces as a whole, while a run goes on, are asked as they were stored.

    Args:
        address: of the database.
        run, sql, timeout, most_rows: as of `query_stored`.

    Raises:
        AuthenticationError: the server does not know the user, or the password is wrong.
        InvalidArgument: it is no store, has no such run, or the query is not allowed; see `checked_query`.
        MissingPackage: `clickhouse_connect` or sqlglot is not installed.
        PeerFailure: the server cannot be reached.
        QueryTimeout: it took longer.
        RecorderError: the database has tables of another version.
    """
    server, database = ClickHouseServer(address, "hocket-query", most_timeout_s=timeout), address.database
    try:
        sql_of_tables = "SELECT count() FROM system.tables WHERE database = {database:String} AND name = 'version'"
        if server.ask(sql_of_tables, {"database": database}).rows == ((0,),):
            raise InvalidArgument(f"{address.shown} is no store: hocket observe serve --store makes one")
        check_version(server, database)
        known = [str(name) for (name,) in server.ask(f"SELECT DISTINCT name FROM {database}.runs ORDER BY name").rows]
        if run not in known:
            raise no_such_run(address.shown, run, known)
        return query_run_rows(server, database, run, sql, {}, timeout=timeout, most_rows=most_rows)
    finally:
        server.close()


def query_run_rows(
    server: ClickHouseServer, database: str, run: str, sql: str, derived: Mapping[str, int], *, timeout: float,
    most_rows: int,
) -> QueryResult:  # fmt: skip
    """Answer a query in ClickHouse's SQL, which comes from a stranger; see `checked_query`.

    Args:
        server, database: where the run is.
        run: its name.
        sql: the query.
        derived: as of `bound_to_run`.
        timeout, most_rows: as of `query_stored`.
    """
    written, named = checked_query(sql)
    limits = {**limits_of_rows(most_rows), "max_memory_usage": _MEMORY_NBYTES, "join_use_nulls": 0,
              "aggregate_functions_null_for_empty": 0}  # fmt: skip
    text, parameters = bound_to_run(written, database, run, named, derived)
    return server.ask(text, parameters, timeout=timeout, settings=limits)


def limits_of_rows(most_rows: int) -> dict[str, object]:
    """Return settings that limit an answer."""
    return {"max_result_rows": most_rows, "max_result_bytes": _MOST_NBYTES, "result_overflow_mode": "throw"}


def bound_to_run(
    sql: str, database: str, run: str, tables: Iterable[str], derived: Mapping[str, int]
) -> tuple[str, dict[str, object]]:
    """Return a query in which the names of tables mean the rows of one run, and its parameters.

    Args:
        sql, database, tables: as of `with_rows_of_run`.
        run: its name.
        derived: the batch of tables that were replaced as a whole, by name.
    """
    named = sorted(tables)
    batches = {f"batch_{table}": batch for table, batch in derived.items() if table in named}
    return with_rows_of_run(sql, database, named, derived), {**batches, **({"run": run} if named else {})}
