"""Reads and writes of files over time: by process, and by file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.observe.serve.view import View, ViewSource, ViewWindow

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables

_MOST_FILES = 100
_LAYER = "io"


@dataclass(frozen=True)
class IoCells:
    """Input and output in each span of each process: columns of equal length. A span begins at "span" times its
    width."""

    process: list[int]
    rank: list[int]
    span: list[int]
    count: list[int]
    busy_s: list[float]
    nbytes: list[int]


@dataclass(frozen=True)
class FileRow:
    """All calls of one kind for a file in the window."""

    file: str
    kind: str
    num_processes: int
    count: int
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class IoView:
    """The answer."""

    begin_s: float
    end_s: float
    width_s: float
    cells: IoCells
    files: list[FileRow]


def _files(table: Tables) -> ir.Table:
    import ibis

    rows = table("io_in_window")
    weight = ibis.greatest(rows.weight, 1)
    taken = ibis.ifelse(rows.seconds.isnan(), 0.0, rows.seconds)
    found = rows.mutate(own_weight=weight, taken=taken * weight, moved=rows.nbytes * weight)
    return (
        found.group_by("file", "kind")
        .aggregate(
            num_processes=found.process.nunique(), num_calls=found.own_weight.sum(), moved=found.moved.sum(),
            taken=found.taken.sum(),
        )
        .order_by(ibis.desc("taken"), "file", "kind")
        .limit(_MOST_FILES)
    )  # fmt: skip


def _make(source: ViewSource, window: ViewWindow) -> IoView:
    rows, width_s, begin_s, end_s = source.ask("timeline", window)
    own: list[dict[str, Any]] = [row for row in rows if row["layer"] == _LAYER]
    cells = IoCells(
        [row["process"] for row in own], [row["rank"] for row in own], [row["bin"] for row in own],
        [row["num_events"] for row in own], [row["busy_s"] for row in own], [row["nbytes"] for row in own],
    )  # fmt: skip
    files = [
        FileRow(str(row["file"]), str(row["kind"]), row["num_processes"], int(row["num_calls"]), int(row["moved"]),
                row["taken"])
        for row in source.rows(_files, *source.limits(window))
    ]  # fmt: skip
    return IoView(begin_s, end_s, width_s, cells, files)


VIEW = View("io", IoView, _make, "Reads and writes of files over time.", num_spans=150)
