"""The views of the page: one route for each."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Query

from hocket.discovery import declared
from hocket.observe.serve import views
from hocket.observe.serve.questions import Moment
from hocket.observe.serve.requests import json_bytes, json_response
from hocket.observe.serve.routes import new_routes
from hocket.observe.serve.state import ServerState
from hocket.observe.serve.view import MOST_SPANS, View, ViewSource, ViewWindow

Spans = Annotated[int | None, Query(ge=1, le=MOST_SPANS, description="Most spans of time.")]
Other = Annotated[str, Query(max_length=100, description="Another run, for views that compare.")]


def all_views() -> list[View]:
    """Return the views, by the names of their files."""
    wanted = "a hocket.observe.serve.view.View"
    return [view for _, view in declared(views, "VIEW", wanted, lambda found: isinstance(found, View))]


def view_routes(state: ServerState) -> APIRouter:
    """Return the routes."""
    routes = new_routes("views", "/runs/{run}/views")
    for view in all_views():
        route = _route(state, view)
        routes.add_api_route(f"/{view.name}", route, response_model=view.answer, summary=view.title, name=view.name)
    return routes


def _route(state: ServerState, view: View) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def answer(
        run: str, begin_s: Moment = None, end_s: Moment = None, spans: Spans = None, other: Other = ""
    ) -> Any:
        found = await state.found(run)
        window = ViewWindow(begin_s, end_s, view.num_spans if spans is None else spans, other)

        async def compute() -> bytes:
            return await state.in_thread(lambda: json_bytes(view.make(ViewSource(found, state.owner), window)))

        return json_response(await state.shared.get((found.name, view.name, window), compute))

    return answer
