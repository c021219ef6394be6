"""The HTTP interface of a store: rows are sent to it as Arrow, questions are answered in JSON.

Every request has the store's token, and the name of this host: a page of another origin that a browser has open can
send neither. Answers to a question are shared by all who ask within a second.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import stat
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from hocket.errors import InvalidArgument, MissingPackage, QueryTimeout, RecorderError, ResourceExhausted
from hocket.observe.store.arrow_batches import read_batch, schema_of
from hocket.observe.store.overview import QUESTIONS, sql_of
from hocket.observe.store.owner import StoreOwner
from hocket.observe.store.stored_run import StoredRun

TOKEN_FILE = "token"
MOST_BODY_NBYTES = 64 << 20
_MOST_TEXT_NBYTES = 100_000
_BODY_TIMEOUT_S = 30.0
_SEAL_TIMEOUT_S = 60.0
_MOST_QUERY_S = 100.0
_MOST_QUERY_ROWS = 100_000
_SHARED_S = 1.0
_MOST_SHARED_NBYTES = 256 << 20
_MOST_BODIES_NBYTES = 512 << 20
"""Of all requests that are being received."""
_MOST_DEPTH = 20
_RETRY_S = "1"
_NUM_QUERIES = 2
"""So many queries in SQL run at once."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _HttpError(Exception):
    """A request that is refused."""

    def __init__(self, status: int, text: str, **more: Any) -> None:
        super().__init__(text)
        self.status, self.content = status, {"error": text, **more}


class SharedAnswers:
    """Answers that are computed once for all who ask the same within a time; for one event loop.

    Args:
        seconds: how long an answer is shared after it was computed.
        most_nbytes: of all answers that are kept; the oldest ones go first.
    """

    def __init__(self, seconds: float, most_nbytes: int) -> None:
        self._seconds, self._most_nbytes = seconds, most_nbytes
        self._answers: OrderedDict[Any, tuple[float, bytes]] = OrderedDict()
        self._computed: dict[Any, asyncio.Future[bytes]] = {}
        self._nbytes = 0

    async def get(self, key: Any, compute: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the answer for a key, from whoever computes it now or has just done so."""
        loop = asyncio.get_running_loop()
        while self._answers and (loop.time() > (first := next(iter(self._answers.items())))[1][0]
                                 or self._nbytes > self._most_nbytes):  # fmt: skip
            self._nbytes -= len(self._answers.pop(first[0])[1])
        if key in self._answers:
            return self._answers[key][1]
        if key not in self._computed:
            # A task of its own: whoever asked first may go away.
            task = asyncio.ensure_future(compute())
            self._computed[key] = task
            task.add_done_callback(lambda done: self._keep(key, done))
        return await asyncio.shield(self._computed[key])

    def _keep(self, key: Any, done: asyncio.Future[bytes]) -> None:
        self._computed.pop(key, None)
        if not done.cancelled() and done.exception() is None:
            self._answers[key] = asyncio.get_running_loop().time() + self._seconds, done.result()
            self._nbytes += len(done.result())


class StoreServer:
    """Answers requests for a store.

    Args:
        owner: of the store.
        token: that requests must have.
        hosts: names and addresses that requests may use for this host.
    """

    def __init__(self, owner: StoreOwner, token: str, hosts: tuple[str, ...]) -> None:
        self._owner = owner
        self._token = token.encode()
        self._hosts = hosts
        self._shared = SharedAnswers(_SHARED_S, _MOST_SHARED_NBYTES)
        self._pool = ThreadPoolExecutor(4, "request")
        self._queries = asyncio.Semaphore(_NUM_QUERIES)
        self._query_pool = ThreadPoolExecutor(_NUM_QUERIES, "query")
        self._bodies_nbytes = 0
        for question in QUESTIONS:
            sql_of(question, "duckdb")  # compiled before anybody waits for it

    def application(self) -> Any:
        """Return the ASGI application.

        Raises:
            MissingPackage: Starlette is not installed.
        """
        try:
            from starlette.applications import Starlette
            from starlette.exceptions import HTTPException
            from starlette.routing import Route
        except ImportError:
            raise MissingPackage("the store needs Starlette and others: pip install 'hocket[store]'") from None
        run = "/v1/runs/{run}"
        routes = [
            Route("/v1/health", self._answered(self._health)),
            Route("/v1/runs", self._answered(self._runs)),
            Route(run, self._answered(self._run), methods=["GET"]),
            Route(run, self._answered(self._add_run), methods=["PUT"]),
            Route(run + "/tables/{table}/schema", self._answered(self._schema)),
            Route(run + "/tables/{table}/rows", self._answered(self._rows, "sender", "first_row"), methods=["POST"]),
            Route(run + "/senders/{sender}/{table}", self._answered(self._sender)),
            Route(run + "/questions/{question}", self._answered(self._question, "begin_s", "end_s", "spans")),
            Route(run + "/query", self._answered(self._query, "timeout_s"), methods=["POST"]),
        ]

        async def refuse(_: Any, error: Any) -> Any:
            return _json_response({"error": f"{error.status_code} {error.detail}"}, error.status_code)

        application = Starlette(routes=routes, exception_handlers={HTTPException: refuse})
        application.router.redirect_slashes = False

        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
                answer = _json_response(refusal.content, refusal.status, {"connection": "close"})
                await answer(scope, receive, send)
            else:
                await application(scope, receive, send)

        return checked

    def close(self) -> None:
        """End the threads of requests."""
        for pool in (self._pool, self._query_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _refusal(self, scope: Scope) -> _HttpError | None:
        headers = dict(scope["headers"])
        host = _without_port(headers.get(b"host", b"").decode("latin-1"))
        # A page can make a name of its own mean this host, and then ask as if it came from here; but not an address.
        if host not in self._hosts and host.strip("[]") != (scope.get("server") or ("",))[0]:
            return _HttpError(421, f"this store is not called {host[:100]!r}: --name adds a name")
        found = headers.get(b"authorization", b"")
        if not hmac.compare_digest(found, b"Bearer " + self._token):
            return _HttpError(401, f"the token is missing or wrong: it is in the file {TOKEN_FILE} of the store")
        return None

    def _answered(self, handle: Callable[[Any], Awaitable[Any]], *parameters: str) -> Callable[[Any], Awaitable[Any]]:
        async def answer(request: Any) -> Any:
            try:
                if unknown := set(request.query_params) - {*parameters}:
                    known = f"known are {', '.join(parameters)}" if parameters else "there are none"
                    raise InvalidArgument(f"this request has no parameter {sorted(unknown)[0]!r:.60}: {known}")
                content = await handle(request)
            except _HttpError as error:
                # What is left of its body is not read.
                headers = {"connection": "close"} if error.status in (408, 413) else None
                return _json_response(error.content, error.status, headers)
            except ResourceExhausted as error:
                return _json_response({"error": str(error)}, 429, {"retry-after": _RETRY_S})
            except QueryTimeout as error:
                return _json_response({"error": str(error)}, 408)
            except (InvalidArgument, RecorderError) as error:
                return _json_response({"error": str(error)}, 400)
            except Exception as error:  # also of DuckDB and Arrow: the sender tries again, and the owner goes on
                return _json_response({"error": f"{type(error).__name__}: {error}"}, 503, {"retry-after": _RETRY_S})
            return _json_response(content, 200)

        return answer

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)

    async def _found(self, request: Any) -> StoredRun:
        name = request.path_params["run"]
        run = await self._in_thread(self._owner.find_run, name)
        if run is None:
            raise _HttpError(404, f"there is no run {name}")
        assert isinstance(run, StoredRun)
        return run

    async def _health(self, _: Any) -> Any:
        return {"process": os.getpid(), "store": str(self._owner.folder), "problems": self._owner.problems}

    async def _runs(self, _: Any) -> Any:
        return {"runs": await self._in_thread(self._owner.run_names)}

    async def _run(self, request: Any) -> Any:
        run = await self._found(request)
        rows = await self._in_thread(run.num_rows)
        return {"run": run.folder.name, "description": run.description, "num_rows": rows}

    async def _add_run(self, request: Any) -> Any:
        body = await self._body(request, _MOST_TEXT_NBYTES)
        try:
            description = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"the description of a run must be JSON: {error}") from None
        if not isinstance(description, dict) or not _is_flat(description, _MOST_DEPTH):
            raise InvalidArgument(f"the description of a run must be an object of at most {_MOST_DEPTH} levels")
        return {"is_new": await self._in_thread(self._owner.add_run, request.path_params["run"], description)}

    async def _schema(self, request: Any) -> Any:
        schema = schema_of(request.path_params["table"])
        return {"columns": {field.name: str(field.type) for field in schema}}

    async def _sender(self, request: Any) -> Any:
        run = await self._found(request)
        schema_of(request.path_params["table"])
        table, sender = request.path_params["table"], request.path_params["sender"]
        return {"next_row": await self._in_thread(run.next_row, table, sender)}

    async def _rows(self, request: Any) -> Any:
        run = await self._found(request)
        table = request.path_params["table"]
        schema_of(table)
        sender, first_row = request.query_params.get("sender", ""), _integer(request, "first_row")
        body = await self._body(request, MOST_BODY_NBYTES)

        def submit() -> tuple[int, Any]:
            rows = read_batch(table, body)
            return rows.num_rows, self._owner.submit(run, table, sender, first_row, rows, max(len(body), rows.nbytes))

        num_rows, done = await self._in_thread(submit)
        # Not cancelled with the request: the rows are stored, whoever waits for it.
        answer = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(done)), _SEAL_TIMEOUT_S)
        if answer.is_pending:
            raise ResourceExhausted("these rows are being stored: ask again")
        if answer.num_stored < num_rows:
            raise _HttpError(409, f"the next row of {sender} is {answer.next_row}, not {first_row}",
                             next_row=answer.next_row)  # fmt: skip
        return asdict(answer)

    async def _question(self, request: Any) -> Any:
        run, question = await self._found(request), request.path_params["question"]
        begin_s, end_s = _number(request, "begin_s"), _number(request, "end_s")
        num_spans = _integer(request, "spans", 600)

        async def compute() -> bytes:
            answer = await self._in_thread(run.ask, question, begin_s, end_s, num_spans)
            return _json_bytes(asdict(answer))

        return await self._shared.get((run.folder.name, question, begin_s, end_s, num_spans), compute)

    async def _query(self, request: Any) -> Any:
        run = await self._found(request)
        timeout = _number(request, "timeout_s")
        timeout = 30.0 if timeout is None else timeout
        if not 0 < timeout <= _MOST_QUERY_S:
            raise InvalidArgument(f"timeout_s must be more than 0 and at most {_MOST_QUERY_S:g}, not {timeout:g}")
        sql = (await self._body(request, _MOST_TEXT_NBYTES)).decode("utf-8", errors="replace")

        def ask() -> Any:
            result = run.query(sql, timeout=timeout, most_rows=_MOST_QUERY_ROWS)
            return _json_bytes({"columns": result.columns, "rows": result.rows})

        try:
            async with asyncio.timeout(timeout):
                await self._queries.acquire()
        except TimeoutError:
            raise ResourceExhausted(f"{_NUM_QUERIES} other queries took longer than {timeout:g} s: ask again") from None
        try:
            return await asyncio.get_running_loop().run_in_executor(self._query_pool, ask)
        finally:
            self._queries.release()

    async def _body(self, request: Any, most_nbytes: int) -> bytes:
        """Return the body of a request, as far as it is not too long and comes in time."""
        length = request.headers.get("content-length")
        if length is not None and (not length.isdigit() or int(length) > most_nbytes):
            raise _too_long(most_nbytes)
        reserved = most_nbytes if length is None else int(length)
        if self._bodies_nbytes + reserved > _MOST_BODIES_NBYTES:
            raise ResourceExhausted(f"requests of {self._bodies_nbytes} bytes are being received: send it again later")
        self._bodies_nbytes += reserved
        try:
            return await _received(request, most_nbytes)
        finally:
            self._bodies_nbytes -= reserved


def read_token(folder: Path) -> str:
    """Return the token of a store; it is made when it is first asked for, readable by its user only.

    Raises:
        InvalidArgument: the file can be read by others, or has no token.
    """
    path = folder / TOKEN_FILE
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidArgument(f"{path} can be read by others: chmod 600 it, or remove it for a new one") from None
    else:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    token = path.read_text(encoding="ascii", errors="replace").strip()
    if len(token) < 20:
        raise InvalidArgument(f"{path} has no token of at least 20 characters: remove it for a new one")
    return token


async def _received(request: Any, most_nbytes: int) -> bytes:
    parts, total = [], 0
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            async for part in request.stream():
                total += len(part)
                if total > most_nbytes:
                    raise _too_long(most_nbytes)
                parts.append(part)
    except TimeoutError:
        raise _HttpError(408, f"the request did not arrive within {_BODY_TIMEOUT_S:g} s") from None
    return b"".join(parts)


def _too_long(most_nbytes: int) -> _HttpError:
    return _HttpError(413, f"a request of this kind has at most {most_nbytes} bytes: send it in parts")


def _is_flat(content: object, depth: int) -> bool:
    """Whether JSON has at most so many levels."""
    parts = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    return depth > 0 and all(_is_flat(each, depth - 1) for each in parts)


def _integer(request: Any, name: str, default: int | None = None) -> int:
    text = request.query_params.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 15:
        raise InvalidArgument(f"{name} must be a number from 0 on, not {text!r:.60}")
    return int(text)


def _number(request: Any, name: str) -> float | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise InvalidArgument(f"{name} must be a number, not {text!r:.60}")
    return value


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).lower()


def _plain(value: Any) -> Any:
    """JSON has no NaN: unknown numbers are null."""
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def _json_bytes(content: Any) -> bytes:
    return json.dumps(_plain(content), separators=(",", ":")).encode()


def _json_response(content: Any, status: int, headers: dict[str, str] | None = None) -> Any:
    from starlette.responses import Response

    body = content if isinstance(content, bytes) else _json_bytes(content)
    return Response(body, status, headers, "application/json")
