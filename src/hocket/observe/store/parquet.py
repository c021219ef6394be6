"""The tables of a run as Parquet files: pandas, Polars, Spark and DuckDB read them, and `query_tables` does.

DuckDB writes and reads the files. A folder has one file for each table and ``tables.json``, which says that all of them
were written; it comes last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.errors import InvalidArgument, RecorderError
from hocket.observe.store.connection import QueryResult, check_query, connect, fill, run_query
from hocket.observe.store.run_tables import Columns, run_tables
from hocket.versioned_json import Head
from hocket.whole_file import write_text

if TYPE_CHECKING:
    from hocket.observe.saved import ObservedRun

ENDINGS = (".parquet",)
TABLES_FILE = "tables.json"
_HEAD = Head("hocket tables, version ", 1, RecorderError, title="a folder of tables", most_nbytes=1 << 20)
_MOST_TABLES = 100


def write_parquet(run: ObservedRun, folder: Path) -> None:
    """Write the tables of a run, one Parquet file each; needs ``pip install 'hocket[sql]'``.

    Args:
        run: from `open_run`.
        folder: made if it does not exist.

    Raises:
        InvalidArgument: a file cannot be written.
        MissingPackage: DuckDB is not installed.
    """
    described = {"command": list(run.description.command), "began_unix_s": run.description.began_s}
    save_tables(run_tables(run), folder, described)


def save_tables(tables: Mapping[str, Columns], folder: Path, run: Mapping[str, Any] | None = None) -> None:
    """Write tables by name.

    Args:
        tables: columns by name.
        folder: made if it does not exist.
        run: what is known of the run that they are of.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with connect() as connection:
        import duckdb

        for name, columns in tables.items():
            try:
                fill(connection, name, columns)
                connection.execute(f"COPY {name} TO {_quoted(folder / name)} (FORMAT parquet, COMPRESSION zstd)")
            except duckdb.Error as error:
                raise InvalidArgument(f"{folder} cannot be written: {error}") from None
            connection.execute(f"DROP TABLE {name}")
    described = {} if run is None else {"run": dict(run)}
    write_text(folder / TABLES_FILE, json.dumps({_HEAD.key: _HEAD.text, "tables": list(tables), **described}))


def load_tables_file(folder: Path) -> dict[str, Any]:
    """Return what a folder says of its tables; "tables" has their names.

    Raises:
        RecorderError: the folder has no tables.
    """
    _, content = _HEAD.load(folder / TABLES_FILE)
    names = content.get("tables")
    if not isinstance(names, list) or len(names) > _MOST_TABLES or not all(map(_is_name, names)):
        raise RecorderError(f'{folder / TABLES_FILE}: "tables" must be a list of at most {_MOST_TABLES} names')
    return content


def query_tables(folder: str | Path, sql: str, *, timeout: float = 30.0, most_rows: int = 1_000_000) -> QueryResult:
    """Ask tables that `export_run` has written as Parquet files, as `query_run` asks a run.

    Args:
        folder: of the files.
        sql, timeout, most_rows: as of `query_run`.

    Raises:
        InvalidArgument: the query is wrong, is not one query, would change something or read a file, or has more rows.
        MissingPackage: DuckDB is not installed.
        QueryTimeout: it took longer.
        RecorderError: the folder has no tables, or one of them is damaged; names the file.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["cat", "/etc/hostname"], "run-for-parquet")
        >>> observe.export_run(observe.open_run("run-for-parquet"), "run-for.parquet")
        >>> observe.query_tables("run-for.parquet", "SELECT program FROM processes").rows
        (('cat /etc/hostname',),)
    """
    place = Path(folder)
    check_query(sql)
    names = load_tables_file(place)["tables"]
    with connect() as connection:
        import duckdb

        for name in names:
            path = place / f"{name}.parquet"
            if not path.is_file():
                raise RecorderError(f"{path}: it is missing")
            try:
                connection.execute(
                    f"CREATE TABLE {name} AS SELECT * FROM read_parquet({_quoted(Path(escape(str(place))) / name)})"
                )
            except duckdb.Error as error:
                raise RecorderError(f"{path}: {error}") from None
        return run_query(connection, sql, timeout, most_rows)


def _is_name(found: object) -> bool:
    return isinstance(found, str) and found.isascii() and found.isidentifier()


def _quoted(path: Path) -> str:
    text = str(path.with_name(path.name + ".parquet")).replace("'", "''")
    return f"'{text}'"
