"""A database in memory that holds tables, and answers one query that can read nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Timer
from typing import TYPE_CHECKING, Any

from hocket.errors import InvalidArgument, MissingPackage, QueryTimeout

if TYPE_CHECKING:
    from hocket.observe.store.run_tables import Columns

_SANDBOX = (
    "SET enable_external_access = false", "SET python_enable_replacements = false", "SET lock_configuration = true",
)  # fmt: skip
"""Neither files nor variables of this process can be read, and that cannot be changed."""
_MEMORY = "1GB"
_FETCHED_ROWS = 500
_MOST_NBYTES = 256 << 20
"""Of the texts in an answer."""


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


def duckdb_module() -> Any:
    """Return DuckDB.

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise MissingPackage("queries and Parquet files need DuckDB: pip install 'hocket[sql]'") from None
    return duckdb


@contextmanager
def connect() -> Iterator[Any]:
    """Make a database in memory; a context manager.

    Raises:
        MissingPackage: DuckDB is not installed.
    """
    connection = duckdb_module().connect(":memory:", config={"memory_limit": _MEMORY, "temp_directory": ""})
    try:
        yield connection
    finally:
        connection.close()


def fill(connection: Any, name: str, columns: Columns) -> None:
    """Make a table of columns."""
    connection.register("columns_of_table", dict(columns))
    # A column of texts without rows has no type.
    typed = (f"{column}::VARCHAR AS {column}" if each.dtype == object else column for column, each in columns.items())
    connection.execute(f"CREATE TABLE {name} AS SELECT {', '.join(typed)} FROM columns_of_table")
    connection.unregister("columns_of_table")


def check_query(sql: str) -> None:
    """Check that this is one statement, and one that only reads.

    Raises:
        InvalidArgument: it is not.
        MissingPackage: DuckDB is not installed.
    """
    duckdb = duckdb_module()
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise InvalidArgument(f"the query is wrong: {error}") from None
    kinds = [statement.type for statement in statements]
    # Not EXPLAIN: with ANALYZE it executes what it explains, which may write.
    if kinds != [duckdb.StatementType.SELECT]:
        found = ", ".join(kind.name for kind in kinds) or "nothing"
        raise InvalidArgument(f"one query that reads is needed, such as SELECT or DESCRIBE, not {found}")


def run_query(
    connection: Any, sql: str, timeout: float, most_rows: int, parameters: Mapping[str, object] | None = None
) -> QueryResult:
    """Return the answer of a database to a query that was checked; it has no other data from here on.

    Raises:
        InvalidArgument: the query is wrong, or has more rows, or its texts are too long.
        QueryTimeout: it took longer.
    """
    import duckdb

    timer = Timer(timeout, connection.interrupt)
    try:
        for setting in _SANDBOX:
            connection.execute(setting)
        timer.start()
        cursor = connection.execute(sql, parameters)
        columns = tuple(column[0] for column in cursor.description or ())
        rows: list[tuple[Any, ...]] = []
        nbytes = 0
        while len(rows) <= most_rows and (part := cursor.fetchmany(min(_FETCHED_ROWS, most_rows + 1 - len(rows)))):
            rows += part
            nbytes += sum(len(value) for row in part for value in row if isinstance(value, (str, bytes)))
            if nbytes > _MOST_NBYTES:
                raise InvalidArgument(f"the answer has more than {_MOST_NBYTES} characters: ask for less")
    except duckdb.InterruptException:
        raise QueryTimeout(f"the query took longer than {timeout:g} s: narrow it, or allow more") from None
    except duckdb.Error as error:
        raise InvalidArgument(f"the query failed: {error}") from None
    finally:
        timer.cancel()
    if len(rows) > most_rows:
        raise InvalidArgument(f"the query has more than {most_rows} rows: add LIMIT, or ask for totals")
    return QueryResult(columns, tuple(rows))
