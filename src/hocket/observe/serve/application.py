"""The HTTP interface of a store: rows come as Arrow, views and questions are answered in JSON, and a page shows them.

Every request has the store's token, or the cookie of a browser that has shown it (see `Access`), and a name of this
host: a page of another origin that a browser has open can send neither. Answers are shared by all who ask within a
second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException

from hocket.observe.serve.access import Access
from hocket.observe.serve.downloads import download_routes
from hocket.observe.serve.ingest import ingest_routes
from hocket.observe.serve.live_routes import live_routes
from hocket.observe.serve.page_files import PageFiles
from hocket.observe.serve.questions import question_routes
from hocket.observe.serve.requests import RequestRefused, json_response
from hocket.observe.serve.result_routes import result_routes
from hocket.observe.serve.routes import new_routes, refusal
from hocket.observe.serve.runs import run_routes
from hocket.observe.serve.state import ServerState
from hocket.observe.serve.view_routes import view_routes
from hocket.observe.store.owner import StoreOwner

API = "/v1"
_SESSION = API + "/session"
_VERSION = "1"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def make_api(state: ServerState) -> FastAPI:
    """Return the application without the checks of `make_application`."""
    api = FastAPI(
        title="hocket observe", version=_VERSION, docs_url=None, redoc_url=None, openapi_url=API + "/openapi.json",
        redirect_slashes=False,
    )  # fmt: skip

    async def no_route(_: Request, error: Exception) -> Any:
        assert isinstance(error, HTTPException)
        return json_response({"error": f"{error.status_code} {error.detail}"}, error.status_code)

    api.add_exception_handler(HTTPException, no_route)
    api.include_router(_session_routes(state), prefix=API)
    for routes in (
        run_routes, ingest_routes, question_routes, view_routes, live_routes, download_routes, result_routes
    ):  # fmt: skip
        api.include_router(routes(state), prefix=API)
    return api


def describe() -> dict[str, Any]:
    """Return the OpenAPI description of the interface."""
    with TemporaryDirectory() as folder, StoreOwner(Path(folder) / "store") as owner:
        state = ServerState(owner, Access("", ()))
        try:
            return make_api(state).openapi()
        finally:
            state.close()


def make_application(state: ServerState, files: PageFiles) -> Application:
    """Return the ASGI application.

    Args:
        state: of the server.
        files: of the page.
    """
    api = make_api(state)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"] = _without_base(scope["path"], state.base_path)
        is_page = not (path == API or path.startswith(API + "/"))
        opens_session = (scope["method"], path) == ("POST", _SESSION)  # which checks the token or the code itself
        try:
            state.access.check(scope, needs_token=not (is_page or opens_session))
            answer = files.response(path.lstrip("/") or "index.html") if is_page else api
        except RequestRefused as error:
            answer = refusal(error)
        await answer(scope, receive, send)

    return application


def _session_routes(state: ServerState) -> Any:
    routes = new_routes("session")

    @routes.post("/session")
    async def open_session(request: Request) -> Any:
        """Exchange the token, or the code of a browser that was just opened, for a cookie, which it sends by itself."""
        cookie = state.access.open_session(request.scope, state.base_path + "/", request.url.scheme == "https")
        return json_response({"is_open": True}, headers={"set-cookie": cookie})

    return routes


def _without_base(path: str, base_path: str) -> str:
    """The path as it is without a proxy in front of it; some proxies take the base away, others do not."""
    return path[len(base_path) :] if base_path and (path + "/").startswith(base_path + "/") else path
