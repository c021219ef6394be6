"""Runs as OpenTelemetry traces: OTLP in JSON, one request a line, as collectors read from files and take over HTTP.

Each process is a resource, each ring of events a scope, each event a span. Format: opentelemetry.io/docs/specs/otlp and
the file exporter's specification; identifiers are hexadecimal, 64-bit numbers are texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.observe.formats.chrome import trace_events
from hocket.observe.formats.stream import write_stream

if TYPE_CHECKING:
    from hocket.observe.saved import ObservedRun, SavedProcess

ENDINGS = (".otlp.jsonl", ".otlp.jsonl.gz")
_SPANS_PER_LINE = 1000
_INTERNAL, _ERROR = 1, 2
"""SPAN_KIND_INTERNAL, STATUS_CODE_ERROR."""
_NS_PER_US = 1e3


def write_otlp(run: ObservedRun, path: Path) -> None:
    """Write all events of a run as spans; the file is there as a whole or not at all.

    Args:
        run: from `open_run`.
        path: of the file; with the ending .gz it is compressed.
    """
    write_stream(path, (json.dumps(request).encode() + b"\n" for request in _requests(run)))


def _requests(run: ObservedRun) -> Iterator[dict[str, Any]]:
    trace = _identifier(f"{run.description.began_s} {run.description.host} {run.description.command}", 16)
    slices = (event for event in trace_events(run) if event["ph"] == "X")
    for (place, ring), events in groupby(slices, key=lambda event: (event["pid"], event["cat"])):
        number = 0
        while batch := list(islice(events, _SPANS_PER_LINE)):
            spans = [_span(run, event, trace, f"{place} {ring} {number + at}") for at, event in enumerate(batch)]
            number += len(batch)
            scope = {"scope": {"name": f"hocket.{ring}"}, "spans": spans}
            yield {"resourceSpans": [{"resource": _resource(run.processes[place]), "scopeSpans": [scope]}]}


def _resource(process: SavedProcess) -> dict[str, Any]:
    owner = process.snapshot.owner
    return {
        "attributes": _attributes(
            {
                "service.name": "hocket",
                "host.name": process.host,
                "process.pid": owner.pid,
                "process.command_line": owner.program,
                **({} if owner.rank is None else {"hocket.rank": owner.rank}),
            }
        )
    }


def _span(run: ObservedRun, event: dict[str, Any], trace: str, key: str) -> dict[str, Any]:
    begin_ns = round(run.description.began_s * 1e9 + event["ts"] * _NS_PER_US)
    arguments = event["args"]
    return {
        "traceId": trace,
        "spanId": _identifier(f"{trace} {key}", 8),
        "name": event["name"],
        "kind": _INTERNAL,
        "startTimeUnixNano": str(begin_ns),
        "endTimeUnixNano": str(begin_ns + round(event["dur"] * _NS_PER_US)),
        "attributes": _attributes({f"hocket.{name}": value for name, value in arguments.items()}),
        "status": {"code": _ERROR} if arguments["state"] == "failed" else {},
    }


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in values.items()
    ]


def _identifier(text: str, nbytes: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=nbytes).hexdigest()
