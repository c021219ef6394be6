"""Answers that are computed once for all who ask the same within a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any


class SharedAnswers:
    """For one event loop.

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
