"""SQL over a recorded run: DuckDB in memory, which can read only the tables of the run."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Timer
from typing import TYPE_CHECKING, Any

from hocket.errors import InvalidArgument, MissingPackage, QueryTimeout
from hocket.observe.store.run_tables import run_tables

if TYPE_CHECKING:
    from hocket.observe.saved import ObservedRun

_SANDBOX = (
    "SET enable_external_access = false", "SET python_enable_replacements = false", "SET lock_configuration = true",
)  # fmt: skip
"""Neither files nor variables of this process can be read, and that cannot be changed."""
_MEMORY = "1GB"


@dataclass(frozen=True)
class QueryResult:
    """The answer to a query.

    Args:
        columns: their names.
        rows: values by column.

    Examples:
        >>> from hocket import observe
        >>> observe.QueryResult(("rank",), ((0,), (1,))).rows
        ((0,), (1,))
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def query_run(run: ObservedRun, sql: str, *, timeout: float = 30.0, most_rows: int = 1_000_000) -> QueryResult:
    """Ask a run in the SQL of DuckDB; needs ``pip install 'hocket[sql]'``.

    Tables are processes, communicators, operations, waits, totals, transfers, io, regions, samples, host_samples and
    findings; ``DESCRIBE operations`` shows the columns of one.

    Args:
        run: from `open_run`.
        sql: one query; it can read these tables and nothing else.
        timeout: seconds after which it is stopped.
        most_rows: at most so many rows.

    Raises:
        InvalidArgument: the query is wrong, is not one query, would change something or read a file, or has more rows.
        MissingPackage: DuckDB is not installed.
        QueryTimeout: it took longer.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["cat", "/etc/hostname"], "run-to-ask")
        >>> observe.query_run(observe.open_run("run-to-ask"), "SELECT count(*) AS n FROM io WHERE kind = 'open'")
        QueryResult(columns=('n',), rows=((1,),))
    """
    try:
        import duckdb
    except ImportError:
        raise MissingPackage("queries need DuckDB: pip install 'hocket[sql]'") from None
    _check(duckdb, sql)
    connection = duckdb.connect(":memory:", config={"memory_limit": _MEMORY})
    timer = Timer(timeout, connection.interrupt)
    try:
        for name, columns in run_tables(run).items():
            connection.register("columns_of_table", dict(columns))
            # A column of texts without rows has no type.
            typed = (
                f"{column}::VARCHAR AS {column}" if each.dtype == object else column for column, each in columns.items()
            )
            connection.execute(f"CREATE TABLE {name} AS SELECT {', '.join(typed)} FROM columns_of_table")
            connection.unregister("columns_of_table")
        for setting in _SANDBOX:
            connection.execute(setting)
        timer.start()
        cursor = connection.execute(sql)
        rows = cursor.fetchmany(most_rows + 1)
        columns_of = tuple(column[0] for column in cursor.description or ())
    except duckdb.InterruptException:
        raise QueryTimeout(f"the query took longer than {timeout:g} s: narrow it, or allow more") from None
    except duckdb.Error as error:
        raise InvalidArgument(f"the query failed: {error}") from None
    finally:
        timer.cancel()
        connection.close()
    if len(rows) > most_rows:
        raise InvalidArgument(f"the query has more than {most_rows} rows: add LIMIT, or ask for totals")
    return QueryResult(columns_of, tuple(rows))


def _check(duckdb: Any, sql: str) -> None:
    """Check that this is one statement, and one that only reads."""
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise InvalidArgument(f"the query is wrong: {error}") from None
    kinds = [statement.type for statement in statements]
    allowed = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
    if len(kinds) != 1 or kinds[0] not in allowed:
        found = ", ".join(kind.name for kind in kinds) or "nothing"
        raise InvalidArgument(f"one query that reads is needed, such as SELECT or DESCRIBE, not {found}")
