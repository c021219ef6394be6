"""How all routes refuse what is wrong: with a status of HTTP and a sentence."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from hocket.errors import InvalidArgument, QueryTimeout, RecorderError, ResourceExhausted
from hocket.observe.serve.requests import RETRY_S, RequestRefused, json_response


@dataclass(frozen=True)
class Refusal:
    """Why a request is refused, and what would be right."""

    error: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": text}
    for status, text in (
        (400, "What is asked is wrong."), (401, "The token is missing, wrong or expired."),
        (403, "A page of another origin asks."), (404, "There is no such thing."), (408, "It took too long."),
        (409, "Another row is expected."), (413, "The request is too long."), (421, "This host has another name."),
        (429, "Too much waits: ask again later."), (503, "It failed: ask again later."),
    )
}  # fmt: skip
_RETRY = {"retry-after": RETRY_S}


def new_routes(tag: str, prefix: str = "") -> APIRouter:
    """Return a router without routes.

    Args:
        tag: what its routes are about.
        prefix: of their paths.
    """
    return APIRouter(prefix=prefix, tags=[tag], route_class=_CheckedRoute, responses=REFUSALS)


def refusal(error: Exception) -> Any:
    """Return the answer for a request that failed."""
    if isinstance(error, RequestRefused):
        # What is left of its body is not read.
        headers = {"connection": "close"} if error.status in (401, 403, 408, 413, 421) else None
        return json_response(error.content, error.status, headers)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        text = f"{first['loc'][-1]}: {first['msg']}, not {str(first.get('input'))[:60]!r}"
        return json_response({"error": text}, 400)
    if isinstance(error, ResourceExhausted):
        return json_response({"error": str(error)}, 429, _RETRY)
    if isinstance(error, QueryTimeout):
        return json_response({"error": str(error)}, 408)
    if isinstance(error, (InvalidArgument, RecorderError)):
        return json_response({"error": str(error)}, 400)
    # Also of DuckDB and Arrow: whoever asks tries again, and the server goes on.
    return json_response({"error": f"{type(error).__name__}: {error}"}, 503, _RETRY)


class _CheckedRoute(APIRoute):
    """Refuses unknown parameters, and answers for whatever fails."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Any]]:
        handle = super().get_route_handler()
        names = [field.alias for field in self.dependant.query_params]

        async def answer(request: Request) -> Any:
            try:
                if unknown := set(request.query_params) - {*names}:
                    known = f"its parameters are {', '.join(names)}" if names else "it takes none"
                    raise InvalidArgument(f"this request has no parameter {sorted(unknown)[0]!r:.60}: {known}")
                return await handle(request)
            except Exception as error:
                return refusal(error)

        return answer
