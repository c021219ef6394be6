"""Rows of a table as an Arrow IPC stream: written by who sends them, checked by who receives them.

A stream from a stranger is refused before its data is touched if its columns are others, and before memory is taken if
it is compressed: a few bytes could ask for any amount.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from hocket.errors import InvalidArgument, MissingPackage, RecorderError
from hocket.observe.store.columns import BOOLEAN, INTEGER, NUMBER, TABLE_COLUMNS, TEXT

if TYPE_CHECKING:
    import pyarrow as pa

    from hocket.observe.store.run_tables import Columns

MOST_BATCH_ROWS = 1 << 20
_SCHEMA, _DICTIONARY, _ROWS = 1, 2, 3
"""Kinds of messages: MessageHeader in Arrow's Message.fbs."""
_METADATA_VERSION, _KIND, _HEADER, _CUSTOM = 0, 1, 2, 4
_COMPRESSION, _DICTIONARY_ROWS = 3, 1
"""Places of fields in the tables Message, RecordBatch and DictionaryBatch there."""
_V5 = 4
MOST_TEXT_NBYTES = 1 << 16
MOST_NUMBER = 1 << 53
"""Of bytes and weights, either way."""


def arrow() -> Any:
    """Return pyarrow.

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise MissingPackage("the store needs pyarrow and others: pip install 'hocket[store]'") from None
    return pyarrow


def schema_of(table: str) -> pa.Schema:
    """Return the schema that the store has for a table.

    Raises:
        InvalidArgument: there is no such table; lists those there are.
    """
    pa = arrow()
    if table not in TABLE_COLUMNS:
        raise InvalidArgument(f"there is no table {table!r:.60}: the tables of a run are {', '.join(TABLE_COLUMNS)}")
    types = {
        TEXT: pa.dictionary(pa.int32(), pa.utf8()), INTEGER: pa.int64(), NUMBER: pa.float64(), BOOLEAN: pa.bool_(),
    }  # fmt: skip
    return pa.schema([pa.field(name, types[kind], nullable=False) for name, kind in TABLE_COLUMNS[table].items()])


def arrow_table(table: str, columns: Columns) -> pa.Table:
    """Return columns of a table of a run as an Arrow table."""
    pa = arrow()
    schema = schema_of(table)
    arrays = []
    for name, kind in TABLE_COLUMNS[table].items():
        array = pa.array(columns[name], type=pa.utf8() if kind == TEXT else None)
        arrays.append(array.dictionary_encode() if kind == TEXT else array)
    return pa.table(arrays, schema=schema)


def write_batch(rows: pa.Table) -> bytes:
    """Return rows as an Arrow IPC stream, with integers as narrow as they can be."""
    pa = arrow()
    rows = pa.table({name: _narrowed(column) for name, column in zip(rows.column_names, rows.columns, strict=True)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _narrowed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    pa = arrow()
    if pa.types.is_dictionary(column.type):
        # A slice has the dictionary of all rows, which may be much longer than the slice.
        column = column.cast(column.type.value_type).dictionary_encode().unify_dictionaries()
        num_values = max((len(each.dictionary) for each in column.chunks), default=0)
        return column.cast(pa.dictionary(_integer_type(0, num_values), column.type.value_type))
    if not pa.types.is_int64(column.type) or not len(column):
        return column
    least, most = pa.compute.min_max(column).as_py().values()
    return column.cast(_integer_type(least, most))


def _integer_type(least: int, most: int) -> pa.DataType:
    pa = arrow()
    for num_bits, kind in ((8, pa.int8()), (16, pa.int16()), (32, pa.int32())):
        if -(1 << num_bits - 1) <= least and most < 1 << num_bits - 1:
            return kind
    return pa.int64()


def read_batch(table: str, content: bytes) -> pa.Table:
    """Return the rows of an Arrow IPC stream, with the schema that the store has.

    Args:
        table: whose rows they are.
        content: the stream.

    Raises:
        InvalidArgument: there is no such table.
        RecorderError: it is no such stream, has other columns (lists them), is compressed, has nulls, or has too many
            rows.
    """
    pa = arrow()
    wanted = schema_of(table)
    _check_messages(content)
    try:
        reader = pa.ipc.open_stream(content)
        check_columns(table, wanted, reader.schema)
        rows = reader.read_all()
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, TypeError) as error:
        if isinstance(error, RecorderError):
            raise
        raise RecorderError(f"the rows of {table} are no Arrow IPC stream, or damaged: {error}") from None
    if rows.num_rows > MOST_BATCH_ROWS:
        raise RecorderError(f"{rows.num_rows} rows at once; at most {MOST_BATCH_ROWS} are taken")
    return checked_rows(table, rows)


def checked_rows(table: str, rows: pa.Table) -> pa.Table:
    """Return rows with the schema that the store has.

    Args:
        table: whose rows they are.
        rows: with columns that `check_columns` takes.

    Raises:
        RecorderError: they are damaged, have nulls, or values that are out of range; names the column.
    """
    pa = arrow()
    wanted = schema_of(table)
    try:
        rows.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise RecorderError(f"the rows of {table} are damaged: {error}") from None
    try:
        for name in rows.schema.names:
            _check_values(table, name, rows[name])
        columns = [_converted(rows[field.name], field.type) for field in wanted]
    except pa.ArrowException as error:
        raise RecorderError(f"a column of {table} has values that do not fit: {error}") from None
    return pa.table(columns, schema=wanted)


def _check_values(table: str, name: str, column: pa.ChunkedArray) -> None:
    pa = arrow()
    is_dictionary = pa.types.is_dictionary(column.type)
    parts = [each.dictionary for each in column.chunks] if is_dictionary else []
    if column.null_count or any(each.null_count for each in parts):
        raise RecorderError(f"column {name} of {table} has nulls: what is unknown is NaN, -1 or an empty text")
    if TABLE_COLUMNS[table][name] == TEXT:
        for texts in parts or column.chunks:
            longest = pa.compute.max(pa.compute.binary_length(texts)).as_py() or 0
            if longest > MOST_TEXT_NBYTES:
                raise RecorderError(
                    f"column {name} of {table} has a text of {longest} bytes, more than {MOST_TEXT_NBYTES}"
                )
    elif name in ("nbytes", "weight") and column.length():
        least, most = pa.compute.min_max(column).as_py().values()
        if least < -MOST_NUMBER or most > MOST_NUMBER:
            raise RecorderError(f"column {name} of {table} has {most if most > MOST_NUMBER else least}: at most 2**53")


def check_columns(table: str, wanted: pa.Schema, found: pa.Schema, *, takes_others: bool = False) -> None:
    """Check the names and types of columns.

    Args:
        table: whose columns they are.
        wanted: from `schema_of`.
        found: of rows.
        takes_others: whether there may be columns that the table does not have.

    Raises:
        RecorderError: they are others; lists them.
    """
    missing = [name for name in wanted.names if name not in found.names]
    others = [name for name in found.names if name not in wanted.names and not takes_others]
    twice = len(set(found.names)) < len(found.names)
    if missing or others or twice:
        parts = [f"it lacks {', '.join(missing)}"] * bool(missing) + [f"it has {', '.join(others)[:200]}"] * bool(
            others
        )
        raise RecorderError(
            f"table {table} has the columns {', '.join(wanted.names)}: {'; '.join(parts) or 'a name occurs twice'}"
        )
    for field in wanted:
        kind = TABLE_COLUMNS[table][field.name]
        if not _is_of_kind(found.field(field.name).type, kind):
            raise RecorderError(f"column {field.name} of {table} must be {kind}, not {found.field(field.name).type}")


def _is_of_kind(found: pa.DataType, kind: str) -> bool:
    types = arrow().types
    if kind == TEXT:
        values = found.value_type if types.is_dictionary(found) else found
        return bool(types.is_string(values) or types.is_large_string(values))
    if kind == INTEGER:
        return bool(types.is_integer(found))
    return bool(types.is_boolean(found) if kind == BOOLEAN else types.is_floating(found))


def _converted(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    pa = arrow()
    if column.type == wanted:
        return column
    if pa.types.is_dictionary(wanted) and not pa.types.is_dictionary(column.type):
        column = column.cast(pa.utf8()).dictionary_encode()
    return column.cast(wanted)


def _check_messages(content: bytes) -> None:
    """Refuse compressed data.

    Arrow's reader would reserve what a compressed buffer says it becomes, so the messages are looked through first.
    """
    pa = arrow()
    try:
        messages = pa.ipc.MessageReader.open_stream(content)
        while True:
            try:
                message = messages.read_next_message()
            except StopIteration:
                return
            metadata = message.metadata.to_pybytes()
            root = _table(metadata, 0)
            # Older streams say in other places that they are compressed.
            if _byte(metadata, root, _METADATA_VERSION) != _V5 or _field(metadata, root, _CUSTOM):
                raise RecorderError("Arrow streams must be of version 5, without metadata of their own")
            kind = _byte(metadata, root, _KIND)
            if kind not in (_SCHEMA, _DICTIONARY, _ROWS):
                raise RecorderError(f"an Arrow stream of rows has no messages of kind {kind}")
            if kind == _SCHEMA:
                continue
            header = _field(metadata, root, _HEADER)
            if kind == _DICTIONARY and header:
                header = _field(metadata, _table(metadata, header), _DICTIONARY_ROWS)
            if not header or _field(metadata, _table(metadata, header), _COMPRESSION):
                raise RecorderError("compressed Arrow streams are not taken: write them without compression")
    except (pa.ArrowException, OSError, struct.error, ValueError) as error:
        if isinstance(error, RecorderError):
            raise
        raise RecorderError(f"it is no Arrow IPC stream, or damaged: {error}") from None


def _table(content: bytes, place: int) -> int:
    """The place of the table that a reference of a flatbuffer points at."""
    return place + int(struct.unpack_from("<I", content, place)[0])


def _field(content: bytes, table: int, number: int) -> int:
    """The place of a field of a table; 0: it has none."""
    entries = table - int(struct.unpack_from("<i", content, table)[0])
    if entries < 0:
        raise ValueError("a table of its metadata begins before it")
    (nbytes,) = struct.unpack_from("<H", content, entries)
    place = 4 + 2 * number
    offset = int(struct.unpack_from("<H", content, entries + place)[0]) if place < nbytes else 0
    return table + offset if offset else 0


def _byte(content: bytes, table: int, number: int) -> int:
    place = _field(content, table, number)
    return content[place] if 0 < place < len(content) else 0
