"""Rows are sent to a store: `StoreClient` does so."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from hocket.errors import InvalidArgument, ResourceExhausted
from hocket.observe.serve.requests import MOST_TEXT_NBYTES, RequestRefused, json_response
from hocket.observe.serve.routes import new_routes
from hocket.observe.serve.state import ServerState
from hocket.observe.store.arrow_batches import read_batch, schema_of

MOST_BODY_NBYTES = 64 << 20
_SEAL_TIMEOUT_S = 60.0
_MOST_DEPTH = 20


def ingest_routes(state: ServerState) -> APIRouter:
    """Return the routes."""
    routes = new_routes("ingest", "/runs/{run}")

    @routes.put("")
    async def add_run(run: str, request: Request) -> Any:
        """Make a run; its body is a description in JSON, such as the command and when it began."""
        body = await state.bodies.receive(request, MOST_TEXT_NBYTES)
        try:
            description = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"the description of a run must be JSON: {error}") from None
        if not isinstance(description, dict) or not _is_flat(description, _MOST_DEPTH):
            raise InvalidArgument(f"the description of a run must be an object of at most {_MOST_DEPTH} levels")
        return json_response({"is_new": await state.in_thread(state.owner.add_run, run, description)})

    @routes.get("/tables/{table}/schema")
    async def schema(run: str, table: str) -> Any:
        """The columns of a table and their types."""
        return json_response({"columns": {field.name: str(field.type) for field in schema_of(table)}})

    @routes.get("/senders/{sender}/{table}")
    async def sender_rows(run: str, sender: str, table: str) -> Any:
        """The number of the next row of a sender."""
        found = await state.found(run)
        schema_of(table)
        return json_response({"next_row": await state.in_thread(found.next_row, table, sender)})

    @routes.post("/tables/{table}/rows")
    async def add_rows(
        run: str, table: str, request: Request, first_row: Annotated[int, Query(ge=0, lt=10**15)], sender: str = ""
    ) -> Any:
        """Store rows: the body is an Arrow IPC stream. What was sent before is not stored again."""
        found = await state.found(run)
        schema_of(table)
        body = await state.bodies.receive(request, MOST_BODY_NBYTES)

        def submit() -> tuple[int, Any]:
            rows = read_batch(table, body)
            nbytes = max(len(body), rows.nbytes)
            return rows.num_rows, state.owner.submit(found, table, sender, first_row, rows, nbytes)

        num_rows, done = await state.in_thread(submit)
        # Not cancelled with the request: the rows are stored, whoever waits for it.
        answer = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(done)), _SEAL_TIMEOUT_S)
        if answer.is_pending:
            raise ResourceExhausted("these rows are being stored: ask again")
        if answer.num_stored < num_rows:
            raise RequestRefused(409, f"the next row of {sender} is {answer.next_row}, not {first_row}",
                                 next_row=answer.next_row)  # fmt: skip
        return json_response(answer)

    return routes


def _is_flat(content: object, depth: int) -> bool:
    """Whether JSON has at most so many levels."""
    parts = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return depth > 0 and all(_is_flat(each, depth - 1) for each in parts)
