"""Folders of tables as runs: what `hocket observe export` and `hocket observe import` have written, for a store."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.errors import RecorderError
from hocket.observe.store.arrow_batches import arrow, check_columns, checked_rows, schema_of
from hocket.observe.store.columns import NUMBER, TABLE_COLUMNS, TEXT
from hocket.observe.store.parquet import TABLES_FILE, load_tables_file

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 65_536
_MOST_ROWS = 1 << 32
_MOST_GROUP_NBYTES = 1 << 30
"""Of the rows that are read at once, as they are in memory."""
_DAMAGED = (OSError, ValueError, KeyError, IndexError, TypeError)
"""What pyarrow raises, besides its own exceptions."""
_MOST_WORDS, _MOST_WORD = 1000, 10_000
_MOST_UNIX_S = 1e12


def is_folder_of_tables(folder: Path) -> bool:
    """Return whether a folder says that it has tables."""
    return (folder / TABLES_FILE).is_file()


def check_tables(folder: Path) -> None:
    """Check the columns of the tables that can be shown, without reading their rows.

    Raises:
        RecorderError: a file is missing, damaged or too large, its columns are others, or no table is one of a run.
        MissingPackage: pyarrow is not installed.
    """
    for table, path in _tables_of_run(folder):
        with _opened(table, path):
            pass


def read_tables(folder: Path) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of the tables that can be shown, in parts, with the names of their tables.

    Columns that the tables of a run do not have are left out, as `hocket observe import` writes some.

    Raises:
        RecorderError: as of `check_tables`, or a value is out of range; names the file.
    """
    pa = arrow()
    for table, path in _tables_of_run(folder):
        with _opened(table, path) as file:
            try:
                for batch in file.iter_batches(_BATCH_ROWS, columns=schema_of(table).names):
                    yield table, checked_rows(table, _with_unknown_numbers(table, pa.Table.from_batches([batch])))
            except RecorderError as error:
                raise RecorderError(f"{path}: {error}") from None
            except (pa.ArrowException, *_DAMAGED) as error:
                raise RecorderError(f"{path}: it is damaged: {error}") from None


def describe_tables(folder: Path) -> dict[str, Any]:
    """Return what the folder says of the run whose tables it has: its command and its begin, as far as they are there.

    Raises:
        RecorderError: the folder has no tables.
    """
    found = load_tables_file(folder).get("run")
    described: dict[str, Any] = found if isinstance(found, dict) else {}
    command, began = described.get("command"), described.get("began_unix_s")
    words = command[:_MOST_WORDS] if isinstance(command, list) else []
    return {
        "command": [word[:_MOST_WORD] for word in words if isinstance(word, str)],
        "began_unix_s": float(began) if isinstance(began, (int, float)) and abs(began) < _MOST_UNIX_S else None,
    }


def _with_unknown_numbers(table: str, rows: pa.Table) -> pa.Table:
    """Rows with NaN for numbers that are not known: in Parquet files that SQL has written they are null."""
    pa = arrow()
    for place, name in enumerate(rows.column_names):
        if TABLE_COLUMNS[table][name] == NUMBER and rows[name].null_count:
            rows = rows.set_column(place, name, pa.compute.fill_null(rows[name], math.nan))
    return rows


def _tables_of_run(folder: Path) -> list[tuple[str, Path]]:
    names = dict.fromkeys(load_tables_file(folder)["tables"])
    found = [(name, folder / f"{name}.parquet") for name in names if name in TABLE_COLUMNS]
    if not found:
        listed = ", ".join(names) or "nothing"
        raise RecorderError(
            f"{folder} has {listed[:200]}, no table of a run: ask it by `hocket observe query {folder} SQL`"
        )
    return found


def _opened(table: str, path: Path) -> Any:
    """The Parquet file of a table, whose columns and size are checked."""
    pa = arrow()
    texts = [name for name, kind in TABLE_COLUMNS[table].items() if kind == TEXT]
    if not path.is_file():
        raise RecorderError(f"{path}: it is missing")
    try:
        # Each text once, as in the file: whoever repeats a long one a million times in few bytes takes no memory.
        file = pa.parquet.ParquetFile(path, read_dictionary=texts)
        schema, metadata = file.schema_arrow, file.metadata
        largest = max((metadata.row_group(each).total_byte_size for each in range(metadata.num_row_groups)), default=0)
    except (pa.ArrowException, *_DAMAGED) as error:
        raise RecorderError(f"{path}: it is damaged: {error}") from None
    if metadata.num_rows > _MOST_ROWS or largest > _MOST_GROUP_NBYTES:
        file.close()
        raise RecorderError(
            f"{path}: {metadata.num_rows} rows, {largest} bytes at once; "
            f"at most {_MOST_ROWS} rows, {_MOST_GROUP_NBYTES} bytes at once are read"
        )
    try:
        check_columns(table, schema_of(table), schema, takes_others=True)
    except RecorderError as error:
        file.close()
        raise RecorderError(f"{path}: {error}") from None
    return file
