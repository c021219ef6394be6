"""What each process did when: how busy its layers were in each span of time, or single events in a short window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.observe.serve.view import View, ViewSource, ViewWindow
from hocket.observe.store.rollups import NAMES_OF_LAYERS, WIDTHS_S

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import TableQuestion, Tables

_MOST_SINGLE = 64
"""More processes are shown by host."""
_MOST_EVENTS = 3000
_ORDER = ("regions", "operations", "transfers", "io")


@dataclass(frozen=True)
class TimelineLane:
    """A layer of a process, or of all processes of a host; then "process" and "rank" are -1."""

    label: str
    layer: str
    host: str
    process: int
    rank: int
    num_processes: int


@dataclass(frozen=True)
class TimelineCells:
    """What happened in each span of each lane: columns of equal length. "lane" is a place in the lanes; a span begins
    at "span" times its width."""

    lane: list[int]
    span: list[int]
    count: list[int]
    busy_s: list[float]
    most_s: list[float]
    nbytes: list[int]


@dataclass(frozen=True)
class TimelineEvents:
    """Single events: columns of equal length."""

    lane: list[int]
    began_s: list[float]
    ended_s: list[float]
    name: list[str]
    nbytes: list[int]


@dataclass(frozen=True)
class TimelineView:
    """The answer. "events" is null where there are too many, "clock_error_s" where no host has said its own."""

    begin_s: float
    end_s: float
    width_s: float
    clock_error_s: float | None
    lanes: list[TimelineLane]
    cells: TimelineCells
    events: TimelineEvents | None


def _processes(table: Tables) -> ir.Table:
    return table("processes")[["process", "rank", "host"]]


def _events_of(layer: str) -> TableQuestion:
    def events(table: Tables) -> ir.Table:
        import ibis

        rows = table(f"{layer}_in_window")
        nbytes = rows.nbytes if "nbytes" in rows.columns else ibis.literal(0)
        found = rows.select(
            process=rows.process, began_s=rows.began_s, ended_s=rows.ended_s, name=rows[NAMES_OF_LAYERS[layer]],
            nbytes=nbytes,
        )  # fmt: skip
        return found.order_by("began_s").limit(_MOST_EVENTS + 1)

    return events


_EVENTS = {layer: _events_of(layer) for layer in NAMES_OF_LAYERS}


def _hosts(table: Tables) -> ir.Table:
    return table("hosts")[["clock_error_s"]]


def _clock_error_s(source: ViewSource) -> float | None:
    """The largest error of a host's clock against that of the first one."""
    return max((float(row["clock_error_s"]) for row in source.rows(_hosts)), default=None)


def _make(source: ViewSource, window: ViewWindow) -> TimelineView:
    rows, width_s, begin_s, end_s = source.ask("timeline", window)
    known = {row["process"]: row for row in source.rows(_processes)}
    ranks = {row["process"]: row["rank"] for row in rows}
    by_host = len(ranks) > _MOST_SINGLE
    places: dict[tuple[Any, str], int] = {}
    lanes: list[TimelineLane] = []
    for process, rank, layer in sorted({(row["process"], row["rank"], row["layer"]) for row in rows}, key=_order):
        host = str(known[process]["host"]) if process in known else ""
        key = (host if by_host else process, layer)
        if key in places:
            continue
        places[key] = len(lanes)
        if by_host:
            members = {each for each in ranks if each in known and known[each]["host"] == host} or {process}
            lanes.append(TimelineLane(host or "unknown host", layer, host, -1, -1, len(members)))
        else:
            label = f"rank {rank}" if rank >= 0 else f"process {process}"
            lanes.append(TimelineLane(label, layer, host, process, rank, 1))

    def lane_of(process: int, layer: str) -> int:
        return places[(str(known[process]["host"]) if process in known else "") if by_host else process, layer]

    cells: dict[tuple[int, int], list[Any]] = {}
    for row in rows:
        key = lane_of(row["process"], row["layer"]), row["bin"]
        own = cells.setdefault(key, [0, 0.0, 0.0, 0])
        own[0] += row["num_events"]
        own[1] += row["busy_s"]
        own[2] = max(own[2], row["most_s"])
        own[3] += row["nbytes"]
    columns = zip(*((*key, *values) for key, values in cells.items()), strict=True) if cells else ([],) * 6
    num_events = sum(row["num_events"] for row in rows)
    has_events = width_s == WIDTHS_S[0] and not by_host and num_events <= _MOST_EVENTS
    first_s, last_s = _exact(window, begin_s, end_s)
    events = _single_events(source, places, first_s, last_s) if has_events else None
    shown_s = (begin_s, end_s) if events is None else (first_s, last_s)
    return TimelineView(*shown_s, width_s, _clock_error_s(source), lanes, TimelineCells(*map(list, columns)), events)


def _order(lane: tuple[int, int, str]) -> tuple[bool, int, int, int]:
    process, rank, layer = lane
    return rank < 0, rank, process, _ORDER.index(layer)


def _exact(window: ViewWindow, begin_s: float, end_s: float) -> tuple[float, float]:
    """The window as it was asked for: single events need no whole spans."""
    first_s = begin_s if window.begin_s is None else max(window.begin_s, begin_s)
    return first_s, end_s if window.end_s is None else min(window.end_s, end_s)


def _single_events(
    source: ViewSource, places: dict[tuple[Any, str], int], begin_s: float, end_s: float
) -> TimelineEvents | None:
    found: list[tuple[int, float, float, str, int]] = []
    for layer in sorted({layer for _, layer in places}):
        for row in source.rows(_EVENTS[layer], begin_s, end_s):
            lane = places.get((row["process"], layer))
            if lane is not None:
                ended_s = row["ended_s"] if row["ended_s"] == row["ended_s"] else end_s  # NaN: it goes on
                found.append((lane, row["began_s"], ended_s, row["name"], row["nbytes"]))
        if len(found) > _MOST_EVENTS:
            return None
    columns = zip(*found, strict=True) if found else ([],) * 5
    return TimelineEvents(*map(list, columns))


VIEW = View("timeline", TimelineView, _make, "What each process did when.")
