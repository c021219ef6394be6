"""Questions that are asked of the tables of a run, each written once: as an Ibis expression, which becomes the SQL of
DuckDB or of ClickHouse."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from hocket.errors import MissingPackage
from hocket.observe.store.columns import BOOLEAN, INTEGER, NUMBER, TABLE_COLUMNS, TEXT

if TYPE_CHECKING:
    import ibis.expr.types as ir

_TYPES = {TEXT: "string", INTEGER: "int64", NUMBER: "float64", BOOLEAN: "boolean"}
_WINDOWED = "_in_window"
_PARAMETERS = {"begin_s": "Float64", "end_s": "Float64"}

Tables = Callable[[str], "ir.Table"]
"""Gives a table of a run by its name."""
TableQuestion = Callable[[Tables], "ir.Table"]


@cache
def table_sql(question: TableQuestion, dialect: str) -> tuple[str, frozenset[str]]:
    """Return the SQL of a question, and the names of its parameters.

    The question gets a table by its name, such as "findings"; by "operations_in_window" those rows that are at least
    partly in a window, whose parameters are "begin_s" and "end_s".

    Args:
        question: a function; its SQL is kept.
        dialect: "duckdb" or "clickhouse".

    Raises:
        MissingPackage: Ibis is not installed.
    """
    try:
        import ibis
    except ImportError:
        raise MissingPackage("the store needs Ibis and others: pip install 'hocket[store]'") from None
    windowed: dict[str, str] = {}

    def table(name: str) -> ir.Table:
        plain = name.removesuffix(_WINDOWED)
        if plain != name:
            windowed[name] = _rows_in_window(plain, dialect)
        return ibis.table({column: _TYPES[kind] for column, kind in TABLE_COLUMNS[plain].items()}, name=name)

    sql = str(ibis.to_sql(question(table), dialect=dialect))
    parts = [f"{name} AS ({text})" for name, text in windowed.items()]
    if not parts:
        return sql, frozenset()
    # An expression of Ibis may begin with tables of its own.
    rest = sql.removeprefix("WITH ")
    return f"WITH {', '.join(parts)}{', ' if rest != sql else ' '}{rest}", frozenset(_PARAMETERS)


def _rows_in_window(table: str, dialect: str) -> str:
    columns = TABLE_COLUMNS[table]
    begin, end = ("began_s", "ended_s") if "ended_s" in columns else ("at_s", "at_s")
    names = {each: f"${each}" if dialect == "duckdb" else f"{{{each}:{kind}}}" for each, kind in _PARAMETERS.items()}
    return f"SELECT * FROM {table} WHERE {begin} < {names['end_s']} AND NOT {end} < {names['begin_s']}"
