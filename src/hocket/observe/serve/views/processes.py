"""The processes of a run: what they are, how busy their layers were, and the CPU and memory that they used."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from hocket.observe.serve.view import MOST_THINNED_ROWS, View, ViewSource, ViewWindow, thinned

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables

_MOST_POINTS = 200
_MOST_PROBLEMS = 1000


@dataclass(frozen=True)
class ProcessSeries:
    """What the kernel said of a process over time: columns of equal length. "cpu" is how many CPUs it used."""

    at_s: list[float]
    cpu: list[float | None]
    resident_nbytes: list[float | None]


@dataclass(frozen=True)
class ProcessRow:
    """A process; "rank" is -1 if it has none. "busy_s" are seconds by layer, in the window. "cost_s" is about what
    recording took; null: there were too few events to tell."""

    process: int
    rank: int
    pid: int
    host: str
    program: str
    state: str
    began_s: float
    num_lost: int
    cost_s: float | None
    busy_s: dict[str, float]
    series: ProcessSeries


@dataclass(frozen=True)
class ProblemRow:
    """What was not seen of a process, or could not be read; "process" is -1 if it is about the run as a whole."""

    process: int
    rank: int
    host: str
    text: str


@dataclass(frozen=True)
class ProcessesView:
    """The answer. "problems" are at most 1,000."""

    begin_s: float
    end_s: float
    processes: list[ProcessRow]
    problems: list[ProblemRow]


def _processes(table: Tables) -> ir.Table:
    return table("processes").order_by("process")


def _problems(table: Tables) -> ir.Table:
    return table("problems").order_by("process", "text", "host", "rank").limit(_MOST_PROBLEMS)


def _samples(table: Tables) -> ir.Table:
    rows = table("samples_in_window")
    samples = thinned(rows[["process", "at_s", "cpu_s", "resident_nbytes"]], ("process",))
    return samples.order_by("process", "at_s")


def _make(source: ViewSource, window: ViewWindow) -> ProcessesView:
    ranks, _, begin_s, end_s = source.ask("ranks", window)
    busy: dict[int, dict[str, float]] = defaultdict(dict)
    for row in ranks:
        busy[row["process"]][row["layer"]] = row["busy_s"]
    samples: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in source.rows(_samples, *source.limits(window), most_rows=MOST_THINNED_ROWS):
        samples[row["process"]].append(row)
    processes = [
        ProcessRow(
            **row | {"cost_s": row["cost_s"] if isfinite(row["cost_s"]) else None},
            busy_s=busy.get(row["process"], {}),
            series=_series(samples.get(row["process"], [])),
        )
        for row in source.rows(_processes)
    ]
    return ProcessesView(begin_s, end_s, processes, [ProblemRow(**row) for row in source.rows(_problems)])


def _series(rows: list[dict[str, Any]]) -> ProcessSeries:
    """The use of CPUs between samples, and the memory at them; of many samples some."""
    chosen = rows[:: max(1, len(rows) // _MOST_POINTS)]
    cpu: list[float | None] = [None] * len(chosen)
    for place in range(1, len(chosen)):
        before, after = chosen[place - 1], chosen[place]
        seconds, used_s = after["at_s"] - before["at_s"], after["cpu_s"] - before["cpu_s"]
        if seconds > 0 and isfinite(used_s) and used_s >= 0:
            cpu[place] = used_s / seconds
    memory = [row["resident_nbytes"] if isfinite(row["resident_nbytes"]) else None for row in chosen]
    return ProcessSeries([row["at_s"] for row in chosen], cpu, memory)


VIEW = View("processes", ProcessesView, _make, "The processes, and the CPU and memory that they used.")
