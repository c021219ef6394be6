"""The results that were opened: a list, and what the page shows of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from fastapi import APIRouter

from hocket.observe.serve.opened_results import ResultListed, result_kinds
from hocket.observe.serve.requests import RequestRefused, json_response
from hocket.observe.serve.routes import new_routes
from hocket.observe.serve.state import ServerState


@dataclass(frozen=True)
class ResultList:
    """The files that were opened, in the order in which they were named."""

    results: list[ResultListed]


def result_routes(state: ServerState) -> APIRouter:
    """Return the routes."""
    routes = new_routes("results")
    answers: Any = reduce(or_, (kind.answer for kind in result_kinds().values()))

    @routes.get("/results", response_model=ResultList)
    async def results() -> Any:
        """The files that were opened."""
        return json_response(ResultList(list(state.results.listed)))

    @routes.get("/results/{name}", response_model=answers)
    async def result(name: str) -> Any:
        """What the page shows of a file; of another form for each kind."""
        if name not in state.results.answers:
            raise RequestRefused(404, f"no file {name!r:.120} was opened")
        return json_response(state.results.answers[name])

    return routes
