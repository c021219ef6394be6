"""``await work``: an operation in a program of asyncio's."""

from __future__ import annotations

import asyncio
import time

from hocket import _native

_EAGER_S = 0.002
_PAUSE_PART = 16
_LONGEST_PAUSE_S = 0.005


async def wait_for(work: _native.Work) -> None:
    """Wait without holding up the event loop; then as ``work.wait()``.

    Where there is a progress thread it tells when the work is over. Elsewhere the loop drives it between its other
    tasks: eagerly at first, then with pauses that are a small part of the time waited. Of a virtual rank, which has
    nothing else to do meanwhile, only the clock goes on.
    """
    if _native.is_virtual_rank():
        work.wait()
        return
    if not work.test() and _native.has_progress_thread():
        loop = asyncio.get_running_loop()
        finished = loop.create_future()
        work._on_finished(lambda: _tell(loop, finished))
        await finished
    begin = time.monotonic()
    while not work.test():
        waited_s = time.monotonic() - begin
        await asyncio.sleep(0 if waited_s < _EAGER_S else min(waited_s / _PAUSE_PART, _LONGEST_PAUSE_S))


def _tell(loop: asyncio.AbstractEventLoop, finished: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_set, finished)
    except RuntimeError:  # the loop was closed: nobody waits any more
        return


def _set(finished: asyncio.Future[None]) -> None:
    if not finished.done():  # or cancelled
        finished.set_result(None)
