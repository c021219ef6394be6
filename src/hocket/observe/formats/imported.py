"""Tables of what other tools have recorded, with the columns of `run_tables` where they mean the same."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Any

from hocket import _native
from hocket.observe.store.columns import BOOLEAN, INTEGER, NUMBER, NUMPY_TYPES, OF_PROCESS, TABLE_COLUMNS, TEXT

if TYPE_CHECKING:
    from hocket.observe.store.run_tables import Columns

TIME = "time"
"""Type of columns that are added in ns since 1970, or as None, and become seconds since the earliest one."""
_TIMES = ("began_s", "ended_s", "at_s", "seen_s")


def _timed(columns: dict[str, str]) -> dict[str, str]:
    return {name: TIME if name in _TIMES else kind for name, kind in columns.items()}


IMPORTED_COLUMNS = {
    "sources": {
        "file": TEXT, "format": TEXT, "version": TEXT, "num_records": INTEGER, "num_left_out": INTEGER,
        "is_partial": BOOLEAN, "origin_unix_s": NUMBER,
    },
    "processes": _timed(TABLE_COLUMNS["processes"]),
    "communicators": TABLE_COLUMNS["communicators"],
    "operations": _timed({**TABLE_COLUMNS["operations"], "seen_s": NUMBER}),
    "collective_counts": {**OF_PROCESS, "comm": INTEGER, "communicator": TEXT, "op": TEXT, "count": INTEGER},
    "members": {
        **OF_PROCESS, "comm": INTEGER, "communicator": TEXT, "comm_rank": INTEGER, "state": TEXT, "error": INTEGER,
    },
    "slices": _timed({
        **OF_PROCESS, "thread": TEXT, "category": TEXT, "name": TEXT, "began_s": NUMBER, "ended_s": NUMBER,
        "seconds": NUMBER,
    }),
    "counters": _timed({**OF_PROCESS, "name": TEXT, "series": TEXT, "at_s": NUMBER, "value": NUMBER}),
    "files": {
        **OF_PROCESS, "layer": TEXT, "file": TEXT, "num_opens": INTEGER, "num_reads": INTEGER, "num_writes": INTEGER,
        "read_nbytes": INTEGER, "written_nbytes": INTEGER, "read_s": NUMBER, "write_s": NUMBER, "meta_s": NUMBER,
        "renamed_from": TEXT,
    },
    "file_counters": {**OF_PROCESS, "layer": TEXT, "file": TEXT, "counter": TEXT, "value": NUMBER},
    "io": _timed({**TABLE_COLUMNS["io"], "layer": TEXT, "offset_nbytes": INTEGER}),
}  # fmt: skip
"""Columns of each table: those of runs and others. What is unknown is -1, NaN or ""."""
_UNKNOWN: dict[str, Any] = {TEXT: "", INTEGER: -1, NUMBER: nan, BOOLEAN: False, TIME: None}
_OPERATIONS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "allgatherbase": "all_gather",
    "allgatherintotensor": "all_gather", "allgatherv": "all_gatherv", "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter", "reducescattertensor": "reduce_scatter",
    "reducescatterv": "reduce_scatterv", "broadcast": "broadcast", "reduce": "reduce", "alltoall": "all_to_all",
    "alltoallbase": "all_to_all", "all2all": "all_to_all", "alltoallv": "all_to_allv", "gather": "gather",
    "gatherv": "gatherv", "scatter": "scatter", "scatterv": "scatterv", "send": "send", "recv": "recv",
    "barrier": "barrier", "scan": "scan",
}  # fmt: skip
_ITEM_NBYTES = {
    "double": 8, "long": 8, "long int": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2, "char": 1,
    "signed char": 1, "byte": 1, "unsigned char": 1, "bool": 1, "complexfloat": 8, "complexdouble": 16, "uint64": 8,
    "uint32": 4, "uint16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Of torch's names of types; `hocket._native.ITEM_NBYTES` has ours."""
_MOST_NBYTES = 1 << 62
_COALESCED = re.compile(r"coalesced\d*$")


@dataclass
class _KnownProcess:
    rank: int
    size: int
    pid: int
    host: str
    program: str


@dataclass
class ImportedTables:
    """Rows by table, as readers of formats add them."""

    _rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _processes: dict[Hashable, int] = field(default_factory=dict)
    _process_rows: list[_KnownProcess] = field(default_factory=list)
    _comms: dict[Hashable, int] = field(default_factory=dict)
    _labels: list[str] = field(default_factory=list)

    def add(self, table: str, **values: Any) -> None:
        """Add a row; columns that are not named are unknown, those of processes and communicators are filled in."""
        self._rows.setdefault(table, []).append(values)

    def process(
        self, key: Hashable, *, rank: int = -1, size: int = 0, pid: int = -1, host: str = "", program: str = ""
    ) -> int:
        """Return the number of a process.

        Args:
            key: equal for one process in all files.
            rank, size: its rank among so many; that in the largest group counts.
            pid, host, program: as far as they are known.
        """
        number = self._processes.setdefault(key, len(self._processes))
        if number == len(self._process_rows):
            self._process_rows.append(_KnownProcess(rank, size, pid, host, program))
        elif size > self._process_rows[number].size:
            self._process_rows[number].rank, self._process_rows[number].size = rank, size
        return number

    def comm(self, key: Hashable, label: str, size: int, members: Iterable[int] = ()) -> int:
        """Return the number of a communicator.

        Args:
            key: equal for one communicator in all files.
            label: its name.
            size: number of its members.
            members: their ranks, as far as they are known.
        """
        number = self._comms.setdefault(key, len(self._comms))
        if number == len(self._labels):
            self._labels.append(label)
            self.add("communicators", comm=number, communicator=label, job=0, size=size,
                     members=",".join(map(str, members)), is_of_program=True)  # fmt: skip
        return number

    @property
    def num_rows(self) -> int:
        """Number of rows so far."""
        return sum(map(len, self._rows.values()))

    def tables(self) -> dict[str, Columns]:
        """Return the tables that have rows, as columns of equal length."""
        import numpy as np

        for number, each in enumerate(self._process_rows):
            self.add("processes", process=number, rank=each.rank, pid=each.pid, host=each.host, program=each.program)
        times = [
            row[column]
            for table, rows in self._rows.items()
            for column, kind in IMPORTED_COLUMNS[table].items()
            if kind == TIME
            for row in rows
            if row.get(column) is not None
        ]
        origin_ns = min(times, default=0)
        result: dict[str, Columns] = {}
        for table, rows in self._rows.items():
            self._fill(table, rows, origin_ns)
            result[table] = {
                column: np.array([row.get(column, _UNKNOWN[kind]) for row in rows], NUMPY_TYPES[kind])
                if kind != TIME
                else np.array([_seconds(row.get(column), origin_ns) for row in rows], "<f8")
                for column, kind in IMPORTED_COLUMNS[table].items()
            }
        return result

    def _fill(self, table: str, rows: list[dict[str, Any]], origin_ns: int) -> None:
        columns = IMPORTED_COLUMNS[table]
        if table == "sources":
            for row in rows:
                row["origin_unix_s"] = origin_ns * 1e-9
        if "host" in columns and table != "processes":
            for row in rows:
                if (number := row.get("process", -1)) >= 0:
                    row["rank"], row["host"] = self._process_rows[number].rank, self._process_rows[number].host
        if "communicator" in columns and table != "communicators":
            for row in rows:
                if (number := row.get("comm", -1)) >= 0:
                    row["communicator"] = self._labels[number]
        if "seconds" in columns:
            for row in rows:
                if row.get("ended_s") is not None and row.get("began_s") is not None:
                    row.setdefault("seconds", (row["ended_s"] - row["began_s"]) * 1e-9)


def operation_of(name: str) -> str:
    """Return hocket's name of an operation that another tool has named, or that name itself.

    Examples:
        >>> [operation_of(name) for name in ("AllReduce", "_allgather_base", "nccl:all_to_all", "SendRecv")]
        ['all_reduce', 'all_gather', 'all_to_all', 'SendRecv']
    """
    plain = name.rsplit(":", 1)[-1].split(" ")[0].lower().replace("_", "")
    return _OPERATIONS.get(_COALESCED.sub("", plain), name)


def item_nbytes(dtype: object) -> int | None:
    """Return the bytes of an item of a type that torch or hocket has named; None: the type is unknown."""
    name = str(dtype).lower().removeprefix("c10::")
    return _ITEM_NBYTES.get(name, _native.ITEM_NBYTES.get(name))


def nbytes_of(shapes: object, dtypes: object) -> int:
    """Return the bytes of arrays together; -1: a shape or a type is unknown."""
    if not isinstance(shapes, (list, tuple)) or not isinstance(dtypes, (list, tuple)) or len(shapes) != len(dtypes):
        return -1
    total = 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        item = item_nbytes(dtype)
        if item is None or not isinstance(shape, (list, tuple)):
            return -1
        if not all(type(each) is int and 0 <= each < _MOST_NBYTES for each in shape):
            return -1
        total += math.prod(shape) * item
    return total if total < _MOST_NBYTES else -1


def _seconds(time_ns: int | None, origin_ns: int) -> float:
    return nan if time_ns is None else (time_ns - origin_ns) * 1e-9
