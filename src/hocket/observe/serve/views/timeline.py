"""What each process did when: how busy its layers were in each span of time, or single events in a short window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
_ORDER = ("regions", "operations", "transfers", "dask", "io")


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
    nbytes: list[int]
    most_s: list[float]


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
    answer = source.run.ask("timeline", window.begin_s, window.end_s, window.spans)
    begin_s, end_s, width_s = answer.begin_s, answer.end_s, answer.width_s
    process, rank, layer, spans, *sums = zip(*answer.rows, strict=True) if answer.rows else ((),) * 8
    found = {*zip(process, rank, layer, strict=True)}
    ranks = {each: own for each, own, _ in found}
    hosts = {row["process"]: str(row["host"]) for row in source.rows(_processes)}
    by_host = len(ranks) > _MOST_SINGLE
    lanes: list[TimelineLane] = []
    places: dict[tuple[Any, str], int] = {}
    """Number of the lane of a process, or of its host."""
    for own_process, own_rank, own_layer in sorted(found, key=_order):
        host = hosts.get(own_process, "")
        if by_host and (host, own_layer) not in places:
            members = [each for each in ranks if hosts.get(each, "") == host]
            places[host, own_layer] = len(lanes)
            lanes.append(TimelineLane(host or "unknown host", own_layer, host, -1, -1, len(members)))
        elif not by_host and (own_process, own_layer) not in places:  # it may have had no rank before
            label = f"rank {own_rank}" if own_rank >= 0 else f"process {own_process}"
            places[own_process, own_layer] = len(lanes)
            lanes.append(TimelineLane(label, own_layer, host, own_process, own_rank, 1))
    owners = [hosts.get(each, "") for each in process] if by_host else process
    lane = [places[pair] for pair in zip(owners, layer, strict=True)]
    is_unique = len(places) == len(found)
    cells = TimelineCells(*map(list, (lane, spans, *sums)) if is_unique else _summed(lane, spans, *sums))
    has_events = width_s == WIDTHS_S[0] and not by_host and sum(cells.count) <= _MOST_EVENTS
    first_s, last_s = _exact(window, begin_s, end_s)
    events = _single_events(source, places, first_s, last_s) if has_events else None
    shown_s = (begin_s, end_s) if events is None else (first_s, last_s)
    return TimelineView(*shown_s, width_s, _clock_error_s(source), lanes, cells, events)


def _summed(*columns: Sequence[Any]) -> Iterator[list[Any]]:
    """One cell for each span of a lane."""
    cells: dict[tuple[int, int], list[Any]] = {}
    for lane, span, count, busy_s, nbytes, most_s in zip(*columns, strict=True):
        own = cells.setdefault((lane, span), [0, 0.0, 0, 0.0])
        own[0] += count
        own[1] += busy_s
        own[2] += nbytes
        own[3] = max(own[3], most_s)
    return map(list, zip(*((*key, *values) for key, values in cells.items()), strict=True))


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


VIEW = View("timeline", TimelineView, _make, "What each process did when.", num_spans=1200)
