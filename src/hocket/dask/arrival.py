"""What a reader waits for: like a future of asyncio, but it continues the reader at once.

A future tells the event loop to continue its task in the next round, after another look at all sockets. That look costs
as much as receiving a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class Arrival:
    """One message that one task waits for. Used in the thread of its event loop.

    asyncio accepts it in the place of a future: `asyncio.isfuture` describes what that needs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._callbacks: list[tuple[Callable[[Any], object], Context | None]] = []
        self._is_done = self._is_cancelled = False

    def __await__(self) -> Generator[Arrival, None, None]:
        if not self._is_done:
            self._asyncio_future_blocking = True
            yield self
        self.result()

    def come(self) -> None:
        """Continue the reader: at once, or in the next round of the loop if a task runs in it now."""
        if self._is_done:
            return
        if asyncio.current_task(self._loop) is not None:
            self.come_soon()
            return
        self._is_done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback, context in callbacks:
            if context is None:
                callback(self)
            else:
                context.run(callback, self)

    def come_soon(self) -> None:
        """Continue the reader in the next round of the loop."""
        self._is_done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback, context in callbacks:
            self._loop.call_soon(callback, self, context=context)

    def cancel(self, msg: Any = None) -> bool:
        """See `asyncio.Future.cancel`."""
        if self._is_done:
            return False
        self._is_cancelled = True
        self.come_soon()
        return True

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        """See `asyncio.Future.add_done_callback`."""
        if self._is_done:
            self._loop.call_soon(callback, self, context=context)
        else:
            self._callbacks.append((callback, context))

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """See `asyncio.Future.remove_done_callback`."""
        left = [each for each in self._callbacks if each[0] != callback]
        num_removed = len(self._callbacks) - len(left)
        self._callbacks = left
        return num_removed

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """See `asyncio.Future.get_loop`."""
        return self._loop

    def done(self) -> bool:
        """See `asyncio.Future.done`."""
        return self._is_done

    def cancelled(self) -> bool:
        """See `asyncio.Future.cancelled`."""
        return self._is_cancelled

    def result(self) -> None:
        """See `asyncio.Future.result`."""
        if self._is_cancelled:
            raise asyncio.CancelledError
        if not self._is_done:
            raise asyncio.InvalidStateError("nothing has come yet")

    def exception(self) -> None:
        """See `asyncio.Future.exception`."""
        self.result()
