"""SQL over a recorded run: DuckDB in memory, which can read only the tables of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.observe.store.connection import QueryResult, check_query, connect, fill, run_query
from hocket.observe.store.run_tables import run_tables

if TYPE_CHECKING:
    from hocket.observe.saved import ObservedRun


def query_run(run: ObservedRun, sql: str, *, timeout: float = 30.0, most_rows: int = 1_000_000) -> QueryResult:
    """Ask a run in the SQL of DuckDB; needs ``pip install 'hocket[sql]'``.

    Tables are processes, communicators, operations, waits, totals, transfers, io, dask, regions, samples,
    host_samples, connections, links and findings; ``DESCRIBE operations`` shows the columns of one.

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
    check_query(sql)
    with connect() as connection:
        for name, columns in run_tables(run).items():
            fill(connection, name, columns)
        return run_query(connection, sql, timeout, most_rows)
