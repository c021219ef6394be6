"""A page follows a run: a stream of events (SSE) of what changes, which a browser connects again by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header
from starlette.responses import StreamingResponse

from hocket.observe.serve.live import LiveRun, LiveTick
from hocket.observe.serve.questions import Moment
from hocket.observe.serve.requests import RequestRefused, json_bytes, json_response
from hocket.observe.serve.routes import new_routes
from hocket.observe.serve.state import ServerState

_RETRY_MS = 300
_MOST_FOLLOWERS = 500
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""The second one is for nginx, which would wait for more."""


def live_routes(state: ServerState) -> APIRouter:
    """Return the routes."""
    routes = new_routes("live", "/runs/{run}")

    @routes.get(
        "/live", response_class=StreamingResponse,
        responses={200: {"model": LiveTick, "description": "A stream of events; the data of each `tick` is this."}},
    )  # fmt: skip
    async def live(run: str, last_event_id: Annotated[str | None, Header()] = None) -> Any:
        """What changes in a run that goes on. The event `over` says that it does not any more."""
        found = await state.found(run)
        known = state.live.known(found)
        if known is None:
            return StreamingResponse(_over(), media_type="text/event-stream", headers=_HEADERS)
        if state.ticker.num_followers >= _MOST_FOLLOWERS:
            raise RequestRefused(429, f"{_MOST_FOLLOWERS} pages follow runs here, the most there can be")
        return StreamingResponse(_ticks(state, known, last_event_id), media_type="text/event-stream", headers=_HEADERS)

    @routes.post("/progress")
    async def progress(run: str, now_s: Moment = None, is_over: bool = False) -> Any:
        """Say that a run goes on, and how far it has come; the sender of its rows does so every few seconds."""
        found = await state.found(run)
        state.live.begin(found).hear(now_s, is_over=is_over)
        return json_response({"is_live": state.live.is_live(found)})

    return routes


async def _over(whole: str = "") -> AsyncIterator[bytes]:
    yield b"event: over\ndata: %s\n\n" % json_bytes({"run": whole})


async def _ticks(state: ServerState, run: LiveRun, last_event_id: str | None) -> AsyncIterator[bytes]:
    number = _number(run, last_event_id)
    yield f"retry: {_RETRY_MS}\n\n".encode()
    with state.ticker.following(run) as ticked:
        while not state.is_closing:
            is_over = run.is_over
            if is_over and run.has_changed:
                run.tick()
            for tick in run.since(number):
                number = tick.number
                yield b"id: %s-%d\nevent: tick\ndata: %s\n\n" % (run.ident.encode(), number, tick.content)
            if is_over:
                async for last in _over(run.whole):
                    yield last
                return
            await ticked.wait()
            ticked.clear()


def _number(run: LiveRun, last_event_id: str | None) -> int:
    """The number of the last tick that a browser has got; 0: it has none of this run."""
    ident, _, number = (last_event_id or "").partition("-")
    return int(number) if ident == run.ident and number.isascii() and number.isdigit() and len(number) < 15 else 0
