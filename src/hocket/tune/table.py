"""The table: one measured time per (operation, class of types, ranks, size, backend), in a JSON file."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hocket import _native
from hocket.comm.policy import CHOOSABLE
from hocket.errors import TableError
from hocket.tune.machine import Machine

FORMAT = "hocket tuning table, version 1"


@dataclass(frozen=True)
class Row:
    """What one backend takes for one operation.

    Args:
        op: name of the operation.
        dtypes: class of types: "moved" (anything that is not reduced), "half" (reductions of 16-bit floats), "full".
        num_ranks: that took part.
        nbytes: as in `Record.nbytes`.
        backend: name.
        busy: whether another backend carried large operations at the same time.
        seconds: median time of an operation, of the slowest rank.
        low, high: the 95 % interval of that median, in seconds.
    """

    op: str
    dtypes: str
    num_ranks: int
    nbytes: int
    backend: str
    busy: bool
    seconds: float
    low: float
    high: float


@dataclass(frozen=True)
class Table:
    """All rows of one machine.

    Args:
        machine: that they were measured on.
        rows: in any order.
        path: the file it came from, for messages.
    """

    machine: Machine
    rows: tuple[Row, ...]
    path: str = "a table in memory"

    @cached_property
    def hash(self) -> str:
        """Equal for tables with equal content; ranks compare it at init."""
        content = json.dumps([self.machine.to_json(), sorted(map(_as_json, self.rows), key=repr)], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()

    @cached_property
    def cells(self) -> Mapping[tuple[str, str, int, bool], Mapping[int, Mapping[str, Row]]]:
        """By (operation, class of types, ranks, busy): by size in ascending order: the row of each backend."""
        cells: dict[tuple[str, str, int, bool], dict[int, dict[str, Row]]] = {}
        for row in sorted(self.rows, key=lambda each: each.nbytes):
            sizes = cells.setdefault((row.op, row.dtypes, row.num_ranks, row.busy), {})
            sizes.setdefault(row.nbytes, {})[row.backend] = row
        return cells

    def merged(self, other: Table) -> Table:
        """Add the rows of another table of the same machine; of equal cells the other's count.

        Raises:
            TableError: it is of another machine.
        """
        difference = other.machine.difference(self.machine)
        if difference is not None:
            raise TableError(f"{self.path} is of another machine than {other.path}: {difference}")
        rows = {_key(row): row for row in self.rows} | {_key(row): row for row in other.rows}
        machine = replace(other.machine, backends={**self.machine.backends, **other.machine.backends})
        return Table(machine, tuple(rows.values()), other.path)


def save_table(table: Table, path: str | Path) -> None:
    """Write a table, one row a line. A reader sees the old file or the new one, never a part."""
    path = Path(path)
    head = json.dumps({"format": FORMAT, "machine": table.machine.to_json()}, indent=1)[:-2]
    rows = ",\n".join(f"  {json.dumps(_as_json(row))}" for row in table.rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(f'{head},\n "rows": [\n{rows}\n ]\n}}\n')
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load_table(path: str | Path) -> Table:
    """Read a table.

    Raises:
        TableError: it cannot be read, or is no table; names the file, and the line where there is one.
    """
    try:
        text = Path(path).read_text()
        content = json.loads(text)
    except OSError as error:
        raise TableError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise TableError(f"{path}: not a text file") from None
    except json.JSONDecodeError as error:
        raise TableError(f"{path}, line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, nesting without end
        raise TableError(f"{path}: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TableError(f"{path}, line 1: not a {FORMAT}")
    machine = _read_machine(content.get("machine"), str(path))
    rows = content.get("rows")
    if not isinstance(rows, list):
        raise TableError(f"{path}: there is no list of rows")
    seen: dict[tuple[object, ...], int] = {}
    checked = []
    for content, line in zip(rows, _lines_of_rows(text), strict=True):
        row = _read_row(content, f"{path}, line {line}")
        if row.backend not in machine.backends:
            raise TableError(f"{path}, line {line}: the machine has no backend {row.backend!r}")
        first = seen.setdefault(_key(row), line)
        if first != line:
            raise TableError(f"{path}, line {line}: the same is said on line {first} already")
        checked.append(row)
    return Table(machine, tuple(checked), str(path))


def _read_machine(content: Any, path: str) -> Machine:
    names = {field.name for field in fields(Machine)}
    if not isinstance(content, dict) or set(content) != names:
        raise TableError(f"{path}: the machine has {', '.join(sorted(names))}, not {content!r}")
    backends = content["backends"]
    if not isinstance(backends, dict) or not all(isinstance(each, str) for each in backends.values()):
        raise TableError(f"{path}: the machine's backends must be descriptions by name, not {backends!r}")
    if not isinstance(content["processor"], str):
        raise TableError(f"{path}: the machine's processor must be a name, not {content['processor']!r}")
    for name in ("num_cpus", "num_hosts"):
        if not _is_count(1)(content[name]):
            raise TableError(f"{path}: the machine's {name} must be a number of 1 or more, not {content[name]!r}")
    return Machine(**content)


def _as_json(row: Row) -> dict[str, object]:
    return asdict(row)


def _key(row: Row) -> tuple[object, ...]:
    return row.op, row.dtypes, row.num_ranks, row.nbytes, row.backend, row.busy


def _lines_of_rows(text: str) -> Iterator[int]:
    """The line on which each row begins, however the file is laid out."""
    decoder = json.JSONDecoder()
    position = text.index("[", text.index('"rows"')) + 1
    while True:
        while text[position] in " \t\r\n,":
            position += 1
        if text[position] == "]":
            return
        yield text.count("\n", 0, position) + 1
        _, position = decoder.raw_decode(text, position)


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _is_count(least: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 63


def _one_of(names: Sequence[str]) -> Callable[[object], bool]:
    return lambda value: value in names


_RULES: dict[str, tuple[Callable[[object], bool], str]] = {
    "op": (_one_of(CHOOSABLE), f"one of {', '.join(CHOOSABLE)}"),
    "dtypes": (_one_of(_native.DTYPE_CLASS_NAMES), f"one of {', '.join(_native.DTYPE_CLASS_NAMES)}"),
    "num_ranks": (_is_count(1), "a number of 1 or more"),
    "nbytes": (_is_count(0), "a number of 0 or more"),
    "backend": (lambda value: isinstance(value, str), "a name"),
    "busy": (lambda value: isinstance(value, bool), "true or false"),
    "seconds": (_is_time, "a time above zero"),
    "low": (_is_time, "a time above zero"),
    "high": (_is_time, "a time above zero"),
}


def _read_row(row: Any, place: str) -> Row:
    names = {field.name for field in fields(Row)}
    if not isinstance(row, dict) or set(row) != names:
        raise TableError(f"{place}: a row has {', '.join(sorted(names))}, not {row!r}")
    for name, (rule, words) in _RULES.items():
        if not rule(row[name]):
            raise TableError(f"{place}: {name} must be {words}, not {row[name]!r}")
    if not row["low"] <= row["seconds"] <= row["high"]:
        raise TableError(f"{place}: seconds must lie between low and high")
    return Row(**row)
