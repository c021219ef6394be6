"""The table: one measured time per (operation, class of types, ranks, size, backend, schedule), in a JSON file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from hocket import _native
from hocket.comm.policy import CHOOSABLE, LARGEST_NBYTES, Range, join_carrier, split_carrier
from hocket.errors import InvalidArgument, TableError
from hocket.measure.comparison import MAX_FOREIGN_BUSY
from hocket.measure.statistics import range_of_median
from hocket.tune.fit import Fit, is_usable
from hocket.tune.machine import Machine
from hocket.versioned_json import Head, read_text
from hocket.whole_file import write_text

_WITHOUT_SCHEDULES = 1
HEAD = Head("hocket tuning table, version ", 2, TableError, older=(_WITHOUT_SCHEDULES,))
FORMAT = HEAD.text


@dataclass(frozen=True)
class TableRow:
    """The time of one operation over one backend.

    Args:
        op: name of the operation.
        dtypes: class of types: "moved" (not reduced), "half" (reductions of 16-bit floats), "full" (other reductions).
        num_ranks: number of ranks.
        nbytes: as in `Record.nbytes`.
        backend: name of the backend.
        busy: whether another backend carried large operations at the same time.
        seconds: median time of an operation on the slowest rank.
        low, high: the 95 % interval of that median, in seconds.
        algorithm: name of the schedule with its parameters; empty: the library's own algorithm.
        source: "sweep": measured by `hocket tune run`; "run": measured in a running program (`hocket.tune.Learner`),
            on the rank that came last, whose time contains no waiting.

    Examples:
        >>> row = hk.tune.Row.of_samples("all_reduce", "full", 2, 1024, "shm", False, [2e-6, 3e-6, 4e-6])
        >>> row.seconds, row.low, row.high
        (3e-06, 2e-06, 4e-06)
        >>> row.carrier
        'shm'
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
    algorithm: str = ""
    source: str = "sweep"

    @property
    def carrier(self) -> str:
        """Backend and algorithm as in `Range.ranking`."""
        return join_carrier(self.backend, self.algorithm)

    @property
    def place(self) -> tuple[object, ...]:
        """The key of the row; a table has one row per key."""
        return self.op, self.dtypes, self.num_ranks, self.nbytes, self.carrier, self.busy

    @staticmethod
    def of_samples(
        op: str, dtypes: str, num_ranks: int, nbytes: int, backend: str, busy: bool, seconds: Sequence[float],
        algorithm: str = "", source: str = "sweep",
    ) -> TableRow:  # fmt: skip
        """Make a row from the times of all rounds."""
        ends = range_of_median(seconds)
        return TableRow(op, dtypes, num_ranks, nbytes, backend, busy, median(seconds), *ends, algorithm, source)


@dataclass(frozen=True)
class TableRule:
    """The choice up to a size; the last rule of an operation, class of types and number of ranks has no upper size.

    Args:
        op, dtypes, num_ranks: as in `TableRow`.
        most_nbytes, ranking, reason: as in `Range`.
    """

    op: str
    dtypes: str
    num_ranks: int
    most_nbytes: int
    ranking: tuple[str, ...]
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """Operation, class of types and number of ranks."""
        return self.op, self.dtypes, self.num_ranks


@dataclass(frozen=True)
class Table:
    """The measured times of one machine.

    Args:
        machine: the machine that was measured.
        rows: rows in any order.
        path: path of the file, for messages.
        fits: links fitted to messages over the backends, for operations that were not measured.
        rules: choices that follow from the rows, by operation in order of size. Without rules, a policy makes them.
        foreign_busy: share of the CPU time, 0 to 1, that other programs took while the table was measured.

    Examples:
        >>> machine = hk.tune.Machine("a processor", 2, 1, {"shm": "shared memory"})
        >>> row = hk.tune.Row("all_reduce", "full", 2, 1024, "shm", False, 2e-6, 1.9e-6, 2.1e-6)
        >>> table = hk.tune.Table(machine, (row,))
        >>> table.cells["all_reduce", "full", 2, False][1024]["shm"].seconds
        2e-06
    """

    machine: Machine
    rows: tuple[TableRow, ...]
    path: str = "a table in memory"
    fits: tuple[Fit, ...] = ()
    rules: tuple[TableRule, ...] = ()
    foreign_busy: float = 0.0

    @property
    def is_judged(self) -> bool:
        """Whether the machine was quiet enough for reliable times."""
        return self.foreign_busy <= MAX_FOREIGN_BUSY

    @cached_property
    def ranges(self) -> Mapping[tuple[str, str, int], Sequence[Range]]:
        """The rules by operation, class of types and number of ranks."""
        ranges: dict[tuple[str, str, int], list[Range]] = {}
        for rule in self.rules:
            ranges.setdefault(rule.key, []).append(Range(rule.most_nbytes, rule.ranking, rule.reason))
        return ranges

    def with_ranges(self, key: tuple[str, str, int], ranges: Sequence[Range]) -> Table:
        """Return the table with these rules instead of the rules with the same key."""
        rules = [rule for rule in self.rules if rule.key != key]
        rules += [TableRule(*key, each.most_nbytes, each.ranking, each.reason) for each in ranges]
        return replace(self, rules=tuple(rules))

    @cached_property
    def hash(self) -> str:
        """A hash of the content; ranks compare it at init."""
        fits = sorted(map(asdict, self.fits), key=repr)
        rows, rules = (sorted(map(asdict, each), key=repr) for each in (self.rows, self.rules))
        content = json.dumps([self.machine.to_json(), rows, fits, rules, self.foreign_busy], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()

    @cached_property
    def cells(self) -> Mapping[tuple[str, str, int, bool], Mapping[int, Mapping[str, TableRow]]]:
        """The rows by (operation, class of types, ranks, busy), then by size in ascending order, then by carrier."""
        cells: dict[tuple[str, str, int, bool], dict[int, dict[str, TableRow]]] = {}
        for row in sorted(self.rows, key=lambda each: each.nbytes):
            sizes = cells.setdefault((row.op, row.dtypes, row.num_ranks, row.busy), {})
            sizes.setdefault(row.nbytes, {})[row.carrier] = row
        return cells

    def merged(self, other: Table) -> Table:
        """Return the rows of both tables of a machine; of rows with equal keys, those of `other`.

        Rules for operations that `other` has measured are dropped.

        Raises:
            TableError: the other table is of another machine.
        """
        difference = other.machine.difference(self.machine)
        if difference is not None:
            raise TableError(f"{self.path} is of another machine than {other.path}: {difference}")
        rows = {row.place: row for row in self.rows} | {row.place: row for row in other.rows}
        machine = replace(other.machine, backends={**self.machine.backends, **other.machine.backends})
        fits = {fit.backend: fit for fit in (*self.fits, *other.fits)}
        measured = {(row.op, row.dtypes, row.num_ranks) for row in other.rows}
        rules = tuple(rule for rule in self.rules if rule.key not in measured)
        foreign_busy = max(self.foreign_busy, other.foreign_busy)
        return Table(machine, tuple(rows.values()), other.path, tuple(fits.values()), rules, foreign_busy)


def save_table(table: Table, path: str | Path) -> None:
    """Write a table, one row per line. Readers see the old file or the new one, never a part.

    Examples:
        >>> machine = hk.tune.Machine("a processor", 2, 1, {"shm": "shared memory"})
        >>> hk.tune.save_table(hk.tune.Table(machine, rows=()), "table.json")
        >>> print(open("table.json").read())
        {
         "format": "hocket tuning table, version 2",
         "machine": {
         ...
    """
    path = Path(path)
    facts = {"format": FORMAT, "machine": table.machine.to_json(), "foreign_busy": table.foreign_busy}
    head = json.dumps(facts, indent=1)[:-2]
    fits, rules, rows = (
        ",\n".join(f"  {json.dumps(each)}" for each in part)
        for part in (map(asdict, table.fits), map(_rule_as_json, table.rules), map(asdict, table.rows))
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'{head},\n "fits": [\n{fits}\n ],\n "rules": [\n{rules}\n ],\n "rows": [\n{rows}\n ]\n}}\n'
    write_text(path, text)


def load_table(path: str | Path) -> Table:
    """Read a table.

    Raises:
        TableError: the file cannot be read, or is not a table; names the file, and the line if known.

    Examples:
        >>> machine = hk.tune.Machine("a processor", 2, 1, {"shm": "shared memory"})
        >>> hk.tune.save_table(hk.tune.Table(machine, rows=()), "table.json")
        >>> table = hk.tune.load_table("table.json")
        >>> table.machine == machine, table.path
        (True, 'table.json')
    """
    text = read_text(path, TableError)
    version, content = HEAD.parse(text, str(path))
    is_old = version == _WITHOUT_SCHEDULES
    facts: Any = content.get("machine")
    _check_fields(facts, Machine, "the machine", str(path), "the machine's {}")
    machine = Machine(**facts)
    fits = () if is_old else _read_fits(content.get("fits"), machine, str(path))
    rules = () if is_old else _read_rules(content.get("rules", []), machine, str(path))
    foreign_busy = content.get("foreign_busy", 0.0)  # older tables do not have it
    if not is_usable(foreign_busy) or foreign_busy > 1:
        raise TableError(f"{path}: foreign_busy must be a share from 0 to 1, not {foreign_busy!r}")
    rows = _list_of("rows", content.get("rows"), str(path))
    seen: dict[tuple[object, ...], int] = {}
    checked = []
    for each, line in zip(rows, _lines_of_rows(text), strict=True):
        given = {"algorithm": "", "source": "sweep", **each} if is_old and isinstance(each, dict) else each
        row = _read_row(given, machine, f"{path}, line {line}")
        first = seen.setdefault(row.place, line)
        if first != line:
            raise TableError(f"{path}, line {line}: line {first} already has a row with the same key")
        checked.append(row)
    return Table(machine, tuple(checked), str(path), fits, rules, foreign_busy)


def _list_of(what: str, content: Any, path: str) -> list[Any]:
    if not isinstance(content, list):
        raise TableError(f"{path}: the list of {what} is missing")
    return content


def _read_fits(content: Any, machine: Machine, path: str) -> tuple[Fit, ...]:
    for each in _list_of("fits", content, path):
        _check_fields(each, Fit, "a fit", path, "{} of a fit")
        if each["backend"] not in machine.backends:
            raise TableError(f"{path}: a fit is of backend {each['backend']!r}, which the machine does not have")
    return tuple(Fit(**each) for each in content)


def _rule_as_json(rule: TableRule) -> dict[str, object]:
    """Return a rule for JSON. A rule without upper size has null, since some readers cannot hold 64-bit numbers."""
    return asdict(rule) | ({"most_nbytes": None} if rule.most_nbytes == LARGEST_NBYTES else {})


def _read_rules(content: Any, machine: Machine, path: str) -> tuple[TableRule, ...]:
    given = _list_of("rules", content, path)
    rules = tuple(_read_rule(each, machine, f"{path}, rule {number}") for number, each in enumerate(given, 1))
    last: dict[tuple[str, str, int], int] = {}
    for number, rule in enumerate(rules, 1):
        if rule.most_nbytes <= last.get(rule.key, -1):
            raise TableError(f"{path}, rule {number}: most_nbytes must be above that of the rule before it")
        last[rule.key] = rule.most_nbytes
    for (op, dtypes, num_ranks), most_nbytes in last.items():
        if most_nbytes != LARGEST_NBYTES:
            raise TableError(
                f"{path}: the last rule of {op} ({dtypes}, {num_ranks} ranks) must have null as most_nbytes"
            )
    return rules


def _read_rule(content: Any, machine: Machine, place: str) -> TableRule:
    _check_fields(content, TableRule, "a rule", place)
    for carrier in content["ranking"]:
        _check_carrier(content["op"], carrier, machine, place)
    most_nbytes = LARGEST_NBYTES if content["most_nbytes"] is None else content["most_nbytes"]
    return TableRule(**content | {"ranking": tuple(content["ranking"]), "most_nbytes": most_nbytes})


def _read_row(content: Any, machine: Machine, place: str) -> TableRow:
    _check_fields(content, TableRow, "a row", place)
    row = TableRow(**content)
    if not row.low <= row.seconds <= row.high:
        raise TableError(f"{place}: seconds must lie between low and high")
    _check_carrier(row.op, row.carrier, machine, place)
    return row


def _lines_of_rows(text: str) -> Iterator[int]:
    """Yield the number of the line on which each row begins, for any layout of the file."""
    decoder = json.JSONDecoder()
    position = text.index("[", text.index('"rows"')) + 1
    while True:
        while text[position] in " \t\r\n,":
            position += 1
        if text[position] == "]":
            return
        yield text.count("\n", 0, position) + 1
        _, position = decoder.raw_decode(text, position)


def _is_number(least: int, most: int = (1 << 63) - 1) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_name(value: object) -> bool:
    return isinstance(value, str)


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "op": (lambda value: value in CHOOSABLE, f"one of {', '.join(CHOOSABLE)}"),
    "dtypes": (lambda value: value in _native.DTYPE_CLASS_NAMES, f"one of {', '.join(_native.DTYPE_CLASS_NAMES)}"),
    **dict.fromkeys(("num_ranks", "num_cpus", "num_hosts"), (_is_number(1), "a number of 1 or more")),
    "nbytes": (_is_number(0), "a number of 0 or more"),
    "most_nbytes": (
        lambda value: value is None or _is_number(0, LARGEST_NBYTES)(value), "a number of 0 or more, or null"
    ),
    **dict.fromkeys(("backend", "algorithm", "processor"), (_is_name, "a name")),
    "backends": (
        lambda value: isinstance(value, dict) and all(map(_is_name, value.values())), "descriptions by name"
    ),
    "busy": (lambda value: isinstance(value, bool), "true or false"),
    **dict.fromkeys(("seconds", "low", "high"), (lambda value: is_usable(value) and value > 0, "a time above zero")),
    **dict.fromkeys(("alpha_s", "beta_s", "gamma_s", "misfit"), (is_usable, "a number of 0 or more")),
    "source": (lambda value: value in ("sweep", "run"), "sweep or run"),
    "ranking": (
        lambda value: isinstance(value, list) and value != [] and all(map(_is_name, value)), "a list of names"
    ),
    "reason": (_is_name, "words"),
}  # fmt: skip
"""For each field of a table: a function that checks a value, and a description of valid values for messages."""


def _check_fields(content: Any, kind: type, what: str, place: str, field_format: str = "{}") -> None:
    """Check that a JSON object has exactly the fields of a class, each with a valid value.

    Args:
        content: the object.
        kind: the class.
        what: name of the object, for messages.
        place: file and line, for messages.
        field_format: format of the name of a field in messages.
    """
    names = [field.name for field in fields(kind)]
    if not isinstance(content, dict) or set(content) != set(names):
        raise TableError(f"{place}: {what} must have the fields {', '.join(sorted(names))}, not {content!r}")
    for name in names:
        is_valid, words = _FIELDS[name]
        if not is_valid(content[name]):
            raise TableError(f"{place}: {field_format.format(name)} must be {words}, not {content[name]!r}")


def _check_carrier(op: str, carrier: str, machine: Machine, place: str) -> None:
    backend, algorithm = split_carrier(carrier)
    if backend not in machine.backends:
        raise TableError(f"{place}: the machine has no backend {backend!r}")
    if not algorithm:
        return
    from hocket.collectives.source import parse_algorithm  # needs NumPy, which a table without schedules does not

    try:
        parse_algorithm(op, algorithm)
    except InvalidArgument as error:
        raise TableError(f"{place}: {error}") from None
