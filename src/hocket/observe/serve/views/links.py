"""The network devices of a run: what they carried, for whom, when they were the limit, and their errors."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any

from hocket.observe.serve.view import MOST_THINNED_ROWS, View, ViewSource, ViewWindow, thinned

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables

_MOST_POINTS = 400
_RATES = ("sent_nbytes", "received_nbytes")
_ERRORS = ("receive_errors", "receive_drops", "send_errors", "send_drops")


@dataclass(frozen=True)
class LinkRow:
    """A network device in the whole run; see `hocket.observe.LinkLoad`. Null is unknown."""

    host: str
    device: str
    queue: str
    neighbor: str
    peers: str
    seconds: float
    sent_nbytes: float
    received_nbytes: float
    rank_nbytes: float
    other_nbytes: float
    foreign_nbytes: float
    header_nbytes: float
    residual_nbytes: float
    resent_nbytes: float
    limited_s: float
    limited_nbytes_s: float | None
    speed_nbytes_s: float | None
    queue_nbytes_s: float | None
    rtt_ratio: float | None
    num_waits: float
    num_drops: float


@dataclass(frozen=True)
class LinkSeries:
    """Bytes per second of a device between samples: columns of equal length."""

    host: str
    device: str
    at_s: list[float]
    sent_nbytes_s: list[float | None]
    received_nbytes_s: list[float | None]


@dataclass(frozen=True)
class PortErrors:
    """What a device counted in the window; null: it was reset, or there are no two samples."""

    host: str
    device: str
    receive_errors: float | None
    receive_drops: float | None
    send_errors: float | None
    send_drops: float | None


@dataclass(frozen=True)
class LinksView:
    """The answer."""

    begin_s: float
    end_s: float
    links: list[LinkRow]
    series: list[LinkSeries]
    errors: list[PortErrors]


def _links(table: Tables) -> ir.Table:
    import ibis

    columns = list(LinkRow.__dataclass_fields__)
    return table("links")[columns].order_by(ibis.desc("limited_s"), ibis.desc("sent_nbytes"))


def _samples(table: Tables) -> ir.Table:
    rows = table("host_samples_in_window")
    chosen = rows.filter(rows.source == "network", rows.number.isin((*_RATES, *_ERRORS)))
    samples = thinned(chosen[["host", "device", "number", "at_s", "value"]], ("host", "device", "number"))
    return samples.order_by("host", "device", "number", "at_s")


def _make(source: ViewSource, window: ViewWindow) -> LinksView:
    _, _, begin_s, end_s = source.ask("totals", window)
    samples: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in source.rows(_samples, *source.limits(window), most_rows=MOST_THINNED_ROWS):
        samples[row["host"], row["device"]][row["number"]].append((row["at_s"], row["value"]))
    series = [
        LinkSeries(host, device, [at for at, _ in numbers[_RATES[0]]][1:][:: _step(numbers)],
                   *(_rates(numbers[name])[:: _step(numbers)] for name in _RATES))
        for (host, device), numbers in samples.items() if len(numbers[_RATES[0]]) > 1
    ]  # fmt: skip
    errors = [
        PortErrors(host, device, *(_grown(numbers[name]) for name in _ERRORS))
        for (host, device), numbers in samples.items()
    ]
    return LinksView(begin_s, end_s, [LinkRow(**row) for row in source.rows(_links)], series, errors)


def _step(numbers: dict[str, list[tuple[float, float]]]) -> int:
    return max(1, len(numbers[_RATES[0]]) // _MOST_POINTS)


def _rates(samples: list[tuple[float, float]]) -> list[float | None]:
    """Bytes per second between each two samples; None where a counter is less than before: it was reset or wrapped."""
    found: list[float | None] = []
    for (before_s, before), (after_s, after) in pairwise(samples):
        is_known = after_s > before_s and isfinite(after - before) and after >= before
        found.append((after - before) / (after_s - before_s) if is_known else None)
    return found


def _grown(samples: list[tuple[float, float]]) -> float | None:
    values: list[Any] = [value for _, value in samples]
    is_known = len(values) > 1 and all(isfinite(each) for each in values) and values == sorted(values)
    return values[-1] - values[0] if is_known else None


VIEW = View("links", LinksView, _make, "The network devices: what they carried, and when they were the limit.")
