"""``await work``: waiting for an operation in an asyncio program."""

from __future__ import annotations

import asyncio
import time

from hocket import _native

_EAGER_S = 0.002
_PAUSE_DIVISOR = 16  # a pause is this fraction of the time waited so far
_LONGEST_PAUSE_S = 0.005


async def wait_for(work: _native.Work) -> None:
    """Wait without blocking the event loop, and raise what ``work.wait()`` would raise.

    With a progress thread, that thread notifies the loop on completion. Without one, the loop polls the work between
    its other tasks: without pauses at first, then with pauses that are a small part of the time waited so far. A
    virtual rank simply waits, on its virtual clock.
    """
    if _native.is_virtual_rank():
        work.wait()
        return
    if not work.test() and _native.has_progress_thread():
        loop = asyncio.get_running_loop()
        finished = loop.create_future()
        work._on_finished(lambda: _notify(loop, finished))
        await finished
    begin = time.monotonic()
    while not work.test():
        waited_s = time.monotonic() - begin
        await asyncio.sleep(0 if waited_s < _EAGER_S else min(waited_s / _PAUSE_DIVISOR, _LONGEST_PAUSE_S))


def _notify(loop: asyncio.AbstractEventLoop, finished: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_set, finished)
    except RuntimeError:  # the loop was closed, so no task is waiting
        return


def _set(finished: asyncio.Future[None]) -> None:
    if not finished.done():  # it may have been cancelled
        finished.set_result(None)
