"""Rows as the store has them, and as the tables in ClickHouse do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hocket.observe.store.arrow_batches import arrow, schema_of
from hocket.observe.store.clickhouse.tables import DERIVED

if TYPE_CHECKING:
    import pyarrow as pa

    from hocket.observe.store.senders import SenderRows


def as_stored(run: str, rows: pa.Table, batch: int, piece: SenderRows | None = None) -> pa.Table:
    """Return rows of a run as they are inserted.

    Args:
        run: its name.
        rows: with the schema of the store.
        batch: number of the round.
        piece: whose rows they are; None: they replace others as a whole.
    """
    pa = arrow()
    first = 0 if piece is None else piece.first_row
    numbers = pa.array(range(first, first + rows.num_rows), pa.int64())
    found = with_columns(rows, {"run": run, "sender": DERIVED if piece is None else piece.sender, "batch": batch})
    return found.append_column("sender_row", numbers)


def with_columns(rows: pa.Table, values: Mapping[str, str | int]) -> pa.Table:
    """Return rows with further columns, which have one value each."""
    pa = arrow()
    for name, value in values.items():
        kind = pa.utf8() if isinstance(value, str) else pa.int64()
        column = pa.repeat(pa.scalar(value, kind), rows.num_rows)
        rows = rows.append_column(name, column.dictionary_encode() if isinstance(value, str) else column)
    return rows


def as_table(table: str, batch: Any) -> Any:
    """Return rows that the server has given as a table with the schema of the store."""
    pa, schema = arrow(), schema_of(table)
    rows = pa.Table.from_batches([batch])
    return pa.table([_converted(rows[field.name], field.type) for field in schema], schema=schema)


def _converted(column: Any, kind: Any) -> Any:
    pa = arrow()
    if pa.types.is_dictionary(kind):
        return column.cast(kind.value_type).dictionary_encode().cast(kind)
    return column.cast(kind)
