"""What all requests have in common: bodies with limits, refusals, answers in JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import is_dataclass
from math import isfinite
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from hocket.errors import ResourceExhausted

MOST_TEXT_NBYTES = 100_000
RETRY_S = "1"
_BODY_TIMEOUT_S = 30.0
_MOST_BODIES_NBYTES = 512 << 20
"""Of all requests that are being received."""


class RequestRefused(Exception):
    """A request that is refused.

    Args:
        status: of HTTP.
        text: why, and what would be right.
        more: further facts for programs.
    """

    def __init__(self, status: int, text: str, **more: Any) -> None:
        super().__init__(text)
        self.status, self.content = status, {"error": text, **more}


class Bodies:
    """The bodies of all requests that are being received; for one event loop."""

    def __init__(self) -> None:
        self._nbytes = 0

    async def receive(self, request: Any, most_nbytes: int) -> bytes:
        """Return the body of a request.

        Raises:
            RequestRefused: it is too long, or does not come in time.
            ResourceExhausted: too many bodies are being received.
        """
        length = request.headers.get("content-length")
        if length is not None and (not length.isdigit() or int(length) > most_nbytes):
            raise _too_long(most_nbytes)
        async with self._reserved(most_nbytes if length is None else int(length)):
            parts, total = [], 0
            try:
                async with asyncio.timeout(_BODY_TIMEOUT_S):
                    async for part in request.stream():
                        total += len(part)
                        if total > most_nbytes:
                            raise _too_long(most_nbytes)
                        parts.append(part)
            except TimeoutError:
                raise RequestRefused(408, f"the request did not arrive within {_BODY_TIMEOUT_S:g} s") from None
            return b"".join(parts)

    @asynccontextmanager
    async def _reserved(self, nbytes: int) -> AsyncIterator[None]:
        if self._nbytes + nbytes > _MOST_BODIES_NBYTES:
            raise ResourceExhausted(f"requests of {self._nbytes} bytes are being received: send it again later")
        self._nbytes += nbytes
        try:
            yield
        finally:
            self._nbytes -= nbytes


def json_bytes(content: Any) -> bytes:
    """Return JSON without NaN, which it does not have: unknown numbers are null. Dataclasses are objects."""
    try:
        return to_json(content, inf_nan_mode="null", bytes_mode="base64", fallback=str)
    except PydanticSerializationError:  # a text that is not Unicode, such as the name of a file; it takes far longer
        return json.dumps(_plain(content), separators=(",", ":")).encode()


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Any:
    """Return an answer.

    Args:
        content: to be written as JSON; bytes: it is.
        status: of HTTP.
        headers: further ones.
    """
    from starlette.responses import Response

    body = content if isinstance(content, bytes) else json_bytes(content)
    return Response(body, status, headers, "application/json")


def _too_long(most_nbytes: int) -> RequestRefused:
    return RequestRefused(413, f"a request of this kind has at most {most_nbytes} bytes: send it in parts")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(vars(value))
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
