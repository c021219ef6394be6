"""What a query of a stranger may ask of ClickHouse: SELECT over the tables of a run, by functions that only compute.

ClickHouse has functions that read files, other hosts and other databases, wherever an expression may be, and takes
names for tables in places that look like values. So nothing is looked for that is forbidden: what is not known to be
harmless is refused. The server never sees the text that was sent, but what was understood of it, written anew with all
names in quotes.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable
from typing import Any

from hocket.errors import InvalidArgument, MissingPackage
from hocket.observe.store.clickhouse.allowed_sql import (
    AGGREGATES,
    ENDINGS,
    FUNCTIONS,
    KEYWORDS,
    NODES,
    OF_FUNCTIONS,
    PARTS,
    TYPES,
)
from hocket.observe.store.clickhouse.tables import INTERNAL
from hocket.observe.store.columns import TABLE_COLUMNS

_MOST_DEPTH = 200
_NAME = re.compile(r"[^\"`\\\x00-\x1f\x7f]{1,200}")


def checked_query(sql: str) -> tuple[str, frozenset[str]]:
    """Return a query as the server may be asked it, and the tables of a run that it names.

    Args:
        sql: one query, in ClickHouse's SQL.

    Raises:
        InvalidArgument: it is no query, is not one query, or has what is not allowed; names that.
        MissingPackage: sqlglot is not installed.
    """
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ImportError:
        raise MissingPackage("the store needs Ibis and others: pip install 'hocket[store]'") from None
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # what is not understood is refused
    try:
        found = [each for each in sqlglot.parse(sql, read="clickhouse") if each is not None]
        if len(found) != 1 or type(found[0]).__name__ not in ("Select", "Union", "Except", "Intersect"):
            kinds = ", ".join(_kind(each) for each in found) or "nothing"
            raise InvalidArgument(f"one query that reads is needed, such as SELECT, not {kinds:.200}")
        tables = _check_tree(found[0])
        written = found[0].sql(dialect="clickhouse", identify=True, comments=False)
        _check_calls(sqlglot.tokenize(written, dialect="clickhouse"))
        again = sqlglot.parse_one(written, read="clickhouse")
        if again.sql(dialect="clickhouse", identify=True, comments=False) != written:
            raise InvalidArgument("the query is not understood: write it more simply")
    except SqlglotError as error:
        raise InvalidArgument(f"the query is wrong: {' '.join(str(error).split())[:300]}") from None
    except RecursionError:
        raise InvalidArgument(f"the query is nested more than {_MOST_DEPTH} deep") from None
    return written, tables


def _check_tree(root: Any) -> frozenset[str]:
    from sqlglot import exp

    known, named = _named_in_with(root)
    columns = _known_columns(root)
    for node in root.walk():
        kind = type(node).__name__
        if not isinstance(node, exp.Func) and kind not in NODES:
            raise InvalidArgument(f"a query must not have {kind}: {_shown(node)}")
        if isinstance(node, exp.Identifier) and not _NAME.fullmatch(str(node.this)):
            raise InvalidArgument(f"a name must not have quotes or backslashes: {str(node.this)!r:.60}")
        if isinstance(node, exp.Query) and not isinstance(node, (exp.Subquery, exp.Table)):
            _check_parts(node, is_root=node is root)
        if isinstance(node, exp.Column) and (node.args.get("db") or node.args.get("catalog")):
            raise InvalidArgument(f"a column must not be that of another database: {_shown(node)}")
        if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star) and node.name not in columns:
            raise InvalidArgument(f"no table has a column {node.name!r:.60}: SELECT * shows those there are")
        if isinstance(node, exp.In):
            _check_in(node)
        if isinstance(node, exp.Table):
            named |= _check_table(node, known)
    return frozenset(named)


def _named_in_with(root: Any) -> tuple[set[str], set[str]]:
    """Names that a query gives to queries at its beginning; and the tables that these use.

    Each may use the ones before it only: ClickHouse takes other names for tables of the database.
    """
    from sqlglot import exp

    known: set[str] = set()
    named: set[str] = set()
    clause = root.args.get("with_") or root.args.get("with")
    if clause is None:
        return known, named
    if clause.args.get("recursive"):
        raise InvalidArgument("a query must not have WITH RECURSIVE")
    for each in clause.expressions:
        name = each.alias
        if not isinstance(each.this, exp.Query) or each.args.get("scalar"):
            raise InvalidArgument(f"WITH gives names to queries only: {_shown(each)}")
        if name in TABLE_COLUMNS or name in INTERNAL or name in known:
            raise InvalidArgument(f"WITH must not name {name!r:.60}, which is another table")
        for table in each.this.find_all(exp.Table):
            named |= _check_table(table, known)
        known.add(name)
    return known, named


def _known_columns(root: Any) -> set[str]:
    """Names that may stand for a value. ClickHouse takes others for functions, some even without parentheses."""
    from sqlglot import exp

    known = {name for columns in TABLE_COLUMNS.values() for name in columns}
    for node in root.find_all(exp.Alias, exp.TableAlias, exp.Lambda):
        known.add(node.alias)
        parts = node.expressions if isinstance(node, exp.Lambda) else node.args.get("columns") or []
        known |= {part.name for part in parts}
    return known


def _check_parts(node: Any, *, is_root: bool) -> None:
    given = {name.rstrip("_") for name, value in node.args.items() if value not in (None, [], False)}
    if "with" in given and not is_root:
        raise InvalidArgument("WITH may only be at the beginning of a query")
    if others := given - PARTS:
        raise InvalidArgument(f"a query must not have {sorted(others)[0].upper()}")


def _check_in(node: Any) -> None:
    """Check that what follows IN is values or a query: ClickHouse takes a name there for a table."""
    from sqlglot import exp

    values = node.args.get("expressions") or []
    if node.args.get("field") is not None or node.args.get("unnest") is not None:
        raise InvalidArgument(f"IN needs values or a query in parentheses: {_shown(node)}")
    if any(value.find(exp.Column, exp.Identifier) for value in values):
        raise InvalidArgument(f"IN needs values, not columns: {_shown(node)}")


def _check_table(node: Any, known: Iterable[str]) -> set[str]:
    """Return the tables of a run that a table of a query is: one or none."""
    from sqlglot import exp

    others = {name for name, value in node.args.items() if value not in (None, [], False)} - {"this", "alias", "joins"}
    name = node.name
    if others or not isinstance(node.this, exp.Identifier) or (name not in TABLE_COLUMNS and name not in known):
        tables = ", ".join(TABLE_COLUMNS)
        raise InvalidArgument(f"a query reads the tables {tables}, and nothing else: {_shown(node)}")
    return {name} & set(TABLE_COLUMNS)


def _check_calls(tokens: list[Any]) -> None:
    """Check all functions by name, as the server will see them."""
    for place, (each, following) in enumerate(itertools.pairwise(tokens)):
        name, kind = each.text.lower(), each.token_type.name
        if following.token_type.name != "L_PAREN" or (kind != "IDENTIFIER" and not re.match(r"\w", name)):
            continue
        known = name in KEYWORDS or name in FUNCTIONS or name in TYPES or _is_aggregate(name)
        if kind == "IDENTIFIER" or not known:  # whoever puts a function into quotes hides it
            raise InvalidArgument(f"a query must not use the function {each.text[:60]}")
        if name in OF_FUNCTIONS and not _is_written_out(tokens[place + 2 :]):
            raise InvalidArgument(f"{each.text[:60]} needs a function as in x -> x + 1, or a single array")


def _is_written_out(tokens: list[Any]) -> bool:
    """Whether the first argument of a call is a function that is written out, or the only one."""
    kinds = [each.token_type.name for each in tokens]
    if kinds[0] != "L_PAREN":
        return kinds[1:2] == ["ARROW"] or not _has_further(kinds)
    depth = 0
    for place, kind in enumerate(kinds):
        depth += {"L_PAREN": 1, "R_PAREN": -1}.get(kind, 0)
        if not depth:
            return bool(kinds[place + 1] == "ARROW")
    return False


def _has_further(kinds: list[str]) -> bool:
    """Whether a call has more arguments than one."""
    depth = 0
    for kind in kinds:
        if not depth and kind in ("COMMA", "R_PAREN"):
            return kind == "COMMA"
        depth += {"L_PAREN": 1, "L_BRACKET": 1, "L_BRACE": 1, "R_PAREN": -1, "R_BRACKET": -1, "R_BRACE": -1}.get(
            kind, 0
        )
    return True


def _is_aggregate(name: str) -> bool:
    while name not in AGGREGATES:
        ending = next((each for each in ENDINGS if name.endswith(each)), None)
        if ending is None:
            return False
        name = name.removesuffix(ending)
    return True


def _kind(statement: Any) -> str:
    """How a statement begins."""
    name = type(statement).__name__
    return str(statement.this).upper() if name == "Command" else name.upper()


def _shown(node: Any) -> str:
    return f"{node.sql(dialect='clickhouse', comments=False)[:100]}"
