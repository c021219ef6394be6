"""Questions that are asked of roll-ups, each written once: as an Ibis expression, which becomes the SQL of DuckDB or of
ClickHouse.

The window is chosen before: the table "selected" has the roll-ups of one level within it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from hocket.errors import InvalidArgument, MissingPackage
from hocket.observe.store.rollups import MOST_SUM

if TYPE_CHECKING:
    import ibis.expr.types as ir

DIALECTS = ("duckdb", "clickhouse")
_PARAMETERS = {"level": "Int8", "first": "Int64", "after": "Int64", "width_s": "Float64"}
_SPANS_OF = {
    "duckdb": "unnest(range({first}, {after}))",
    "clickhouse": "arrayJoin(range({first}, {after}))",
}
"""A row for each number of a range."""
_WIDE = {"duckdb": r"\1", "clickhouse": r"toInt128(\1) AS \1"}
"""A column whose sums do not overflow: those of DuckDB never do."""
_SELECTED = """
  SELECT bin, layer, process, rank, name, <wide "count">, busy_s, most_s, <wide nbytes> FROM <source>
  WHERE level = <level> AND bin >= <first> AND bin < <after>
"""
"""The spans of a level in a window."""
_SELECTED_LONG = """
  UNION ALL
  SELECT
    span AS bin, layer, process, rank, name,
    CASE WHEN span = begin_span THEN own_count ELSE 0 END AS "count",
    own_count * (least(ended_s, (span + 1) * <width_s>) - greatest(began_s, span * <width_s>)) AS busy_s,
    CASE WHEN span = begin_span THEN own_most_s ELSE 0 END AS most_s,
    CASE WHEN span = begin_span THEN own_nbytes ELSE 0 END AS nbytes
  FROM (
    SELECT *, <spans of greatest(begin_span, <first>), least(end_span + 1, <after>)> AS span
    FROM (
      SELECT
        *, "count" AS own_count, most_s AS own_most_s, nbytes AS own_nbytes,
        CAST(floor(began_s / <width_s>) AS BIGINT) AS begin_span,
        CAST(floor(ended_s / <width_s>) AS BIGINT) AS end_span
      FROM rollups WHERE level = -1
    ) AS long_events
    WHERE begin_span < <after> AND end_span >= <first>
  ) AS spans
"""
"""What long events contribute to them.

For ClickHouse the name of a result is that of a column from there on, so columns have other names within.
"""
_MOST_ROWS = 1000


def _totals(rows: ir.Table) -> ir.Table:
    """Of each layer: events, seconds, bytes, the longest event."""
    return rows.group_by("layer").aggregate(**_sums(rows)).order_by("layer")


def _over_time(rows: ir.Table) -> ir.Table:
    """The same for each span of time."""
    return rows.group_by("bin", "layer").aggregate(**_sums(rows)).order_by("bin", "layer")


def _names(rows: ir.Table) -> ir.Table:
    """Which operations, calls and regions took the most time."""
    import ibis

    found = rows.group_by("layer", "name").aggregate(**_sums(rows))
    return found.order_by(ibis.desc("busy_s"), "layer", "name").limit(_MOST_ROWS)


def _ranks(rows: ir.Table) -> ir.Table:
    """How long each process was in each layer."""
    found = rows.group_by("process", "rank", "layer").aggregate(**_sums(rows))
    return found.order_by("process", "layer").limit(100 * _MOST_ROWS)


def _timeline(rows: ir.Table) -> ir.Table:
    """Of each process and layer, the events of each span of time."""
    found = rows.group_by("process", "rank", "layer", "bin").aggregate(**_sums(rows))
    return found.order_by("process", "layer", "bin").limit(1000 * _MOST_ROWS)


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "totals": _totals, "over-time": _over_time, "names": _names, "ranks": _ranks, "timeline": _timeline,
}  # fmt: skip
"""By name. Each is a function from the table "selected" to a table."""
OVERVIEW = ("totals", "over-time", "names", "ranks")
"""The questions that a page asks all the time."""


def sql_of(question: str, dialect: str, *, source: str = "rollups", has_long: bool = True) -> str:
    """Return the SQL of a question.

    Its parameters are the window: "level", "first" and "after" of the spans, and, with long events, the length of the
    spans, "width_s".

    Args:
        question: one of `QUESTIONS`.
        dialect: one of `DIALECTS`.
        source: SQL of where the spans of the level are; long events are in the table "rollups".
        has_long: whether long events are asked, too.

    Raises:
        InvalidArgument: there is no such question; lists those there are.
        MissingPackage: Ibis is not installed.
    """
    selected = _selected(dialect, has_long).replace("<source>", source)
    return f"WITH selected AS ({selected})\n{_of_selected(question, dialect)}"


@cache
def _of_selected(question: str, dialect: str) -> str:
    if question not in QUESTIONS:
        raise InvalidArgument(f"there is no question {question!r:.60}: there are {', '.join(QUESTIONS)}")
    try:
        import ibis
    except ImportError:
        raise MissingPackage("the store needs Ibis and others: pip install 'hocket[store]'") from None
    rows = ibis.table(
        {"bin": "int64", "layer": "string", "process": "int64", "rank": "int64", "name": "string",
         "count": "int64", "busy_s": "float64", "most_s": "float64", "nbytes": "int64"},
        name="selected",
    )  # fmt: skip
    return str(ibis.to_sql(QUESTIONS[question](rows), dialect=dialect))


@cache
def _selected(dialect: str, has_long: bool) -> str:
    spans = _SPANS_OF[dialect]
    found = re.search(r"<spans of (.*), (least.*)> AS", _SELECTED_LONG)
    assert found
    long_events = _SELECTED_LONG.replace(found[0], spans.format(first=found[1], after=found[2]) + " AS")
    sql = re.sub("<wide (.*?)>", _WIDE[dialect], _SELECTED) + (long_events if has_long else "")
    for name, kind in _PARAMETERS.items():
        sql = sql.replace(f"<{name}>", f"${name}" if dialect == "duckdb" else f"{{{name}:{kind}}}")
    return sql


def _sums(rows: Any) -> dict[str, Any]:
    import ibis

    return {
        "num_events": ibis.least(rows["count"].sum(), MOST_SUM), "busy_s": rows.busy_s.sum(),
        "nbytes": ibis.least(rows.nbytes.sum(), MOST_SUM), "most_s": rows.most_s.max(),
    }  # fmt: skip
