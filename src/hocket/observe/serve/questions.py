"""A store is asked: which runs it has, questions that roll-ups answer, SQL."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from hocket.errors import ResourceExhausted
from hocket.observe.serve.requests import MOST_TEXT_NBYTES, json_bytes, json_response
from hocket.observe.serve.routes import new_routes
from hocket.observe.serve.state import ServerState

Moment = Annotated[float | None, Query(allow_inf_nan=False, description="Seconds since the run began.")]
_MOST_QUERY_S = 100.0
_MOST_QUERY_ROWS = 100_000


def question_routes(state: ServerState) -> APIRouter:
    """Return the routes."""
    routes = new_routes("questions")

    @routes.get("/health")
    async def health() -> Any:
        """Which process answers, and what goes wrong there."""
        owner = state.owner
        return json_response({"process": os.getpid(), "store": owner.place, "problems": owner.problems})

    @routes.get("/runs/{run}/rows")
    async def num_rows(run: str) -> Any:
        """What a run is, and how many rows each of its tables has."""
        found = await state.found(run)
        rows = await state.in_thread(found.num_rows)
        return json_response({"run": found.name, "description": found.description, "num_rows": rows})

    @routes.get("/runs/{run}/questions/{question}")
    async def ask(
        run: str, question: str, begin_s: Moment = None, end_s: Moment = None,
        spans: Annotated[int, Query(ge=0, lt=10**15)] = 600,
    ) -> Any:  # fmt: skip
        """The answer to a question, from roll-ups."""
        found = await state.found(run)

        async def compute() -> bytes:
            return await state.in_thread(lambda: json_bytes(found.ask(question, begin_s, end_s, spans)))

        return json_response(await state.shared.get((found.name, question, begin_s, end_s, spans), compute))

    @routes.post("/runs/{run}/query")
    async def query(
        run: str, request: Request,
        timeout_s: Annotated[float, Query(gt=0, le=_MOST_QUERY_S, allow_inf_nan=False)] = 30.0,
    ) -> Any:  # fmt: skip
        """The answer to a query in SQL, which is the body."""
        found = await state.found(run)
        sql = (await state.bodies.receive(request, MOST_TEXT_NBYTES)).decode("utf-8", errors="replace")

        def answer() -> bytes:
            result = found.query(sql, timeout=timeout_s, most_rows=_MOST_QUERY_ROWS)
            return json_bytes({"columns": result.columns, "rows": result.rows})

        try:
            async with asyncio.timeout(timeout_s):
                await state.queries.acquire()
        except TimeoutError:
            text = f"{state.num_queries} other queries took longer than {timeout_s:g} s: ask again"
            raise ResourceExhausted(text) from None
        try:
            return json_response(await asyncio.get_running_loop().run_in_executor(state.query_pool, answer))
        finally:
            state.queries.release()

    return routes
