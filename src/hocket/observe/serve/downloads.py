"""What a page offers to keep: tables as Parquet files, and a window as a timeline for Perfetto."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, StreamingResponse

from hocket.errors import InvalidArgument
from hocket.observe.serve.questions import Moment
from hocket.observe.serve.routes import new_routes
from hocket.observe.serve.state import ServerState
from hocket.observe.serve.view import ViewSource, ViewWindow
from hocket.observe.store.arrow_batches import schema_of
from hocket.observe.store.rollups import NAMES_OF_LAYERS

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import TableQuestion, Tables

_MOST_EVENTS = 500_000
_US_PER_S = 1e6


def download_routes(state: ServerState) -> APIRouter:
    """Return the routes."""
    routes = new_routes("downloads", "/runs/{run}")

    @routes.get("/tables/{table}/parquet", response_class=FileResponse)
    async def parquet(run: str, table: str) -> Any:
        """All rows of a table."""
        found = await state.found(run)
        schema_of(table)
        descriptor, name = mkstemp(prefix="hocket-", suffix=".parquet")
        os.close(descriptor)
        path = Path(name)
        try:
            await state.in_thread(found.write_table, table, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        remove = BackgroundTask(path.unlink, missing_ok=True)
        return FileResponse(path, filename=f"{found.name}-{table}.parquet", background=remove)

    @routes.get("/trace", response_class=StreamingResponse)
    async def trace(run: str, begin_s: Moment = None, end_s: Moment = None) -> Any:
        """The events of a window in Chrome's format, which Perfetto opens."""
        found = await state.found(run)
        source, window = ViewSource(found, state.owner), ViewWindow(begin_s, end_s)
        rows = await state.in_thread(_events, source, window)
        headers = {"content-disposition": f'attachment; filename="{found.name}.json"'}
        return StreamingResponse(_written(rows), media_type="application/json", headers=headers)

    return routes


def _processes(table: Tables) -> ir.Table:
    return table("processes")[["process", "rank", "pid", "host"]]


def _events_of(layer: str) -> TableQuestion:
    def events(table: Tables) -> ir.Table:
        rows = table(f"{layer}_in_window")
        chosen = rows.select(process=rows.process, name=rows[NAMES_OF_LAYERS[layer]], began_s=rows.began_s,
                             seconds=rows.seconds)  # fmt: skip
        return chosen.filter(~chosen.seconds.isnan()).order_by("began_s").limit(_MOST_EVENTS + 1)

    return events


_EVENTS = {layer: _events_of(layer) for layer in NAMES_OF_LAYERS}


def _events(source: ViewSource, window: ViewWindow) -> list[dict[str, Any]]:
    """Events of Chrome's format: a process each, with a lane for each layer."""
    found: list[dict[str, Any]] = []
    for row in source.rows(_processes):
        name = f"rank {row['rank']}" if row["rank"] >= 0 else f"process {row['pid']}"
        args = {"name": f"{name} on {row['host']}"}
        found.append({"ph": "M", "name": "process_name", "pid": row["process"], "tid": 0, "args": args})
    num_described = len(found)
    for lane, (layer, question) in enumerate(_EVENTS.items(), 1):
        rows = source.rows(question, *source.limits(window), most_rows=_MOST_EVENTS + 1)
        for process in sorted({row["process"] for row in rows}):
            found.append({"ph": "M", "name": "thread_name", "pid": process, "tid": lane, "args": {"name": layer}})
        found += [
            {"ph": "X", "name": row["name"], "cat": layer, "pid": row["process"], "tid": lane,
             "ts": row["began_s"] * _US_PER_S, "dur": row["seconds"] * _US_PER_S}
            for row in rows
        ]  # fmt: skip
        if len(found) - num_described > _MOST_EVENTS:
            raise InvalidArgument(f"the window has more than {_MOST_EVENTS} events: choose a shorter one")
    return found


def _written(events: list[dict[str, Any]]) -> Iterator[bytes]:
    yield b'{"displayTimeUnit": "ms", "traceEvents": [\n'
    for place, event in enumerate(events):
        yield (",\n" if place else "").encode() + json.dumps(event).encode()
    yield b"\n]}\n"
