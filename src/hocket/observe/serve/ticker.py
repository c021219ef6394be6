"""Wakes those who follow runs, at most twenty times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from hocket.observe.serve.live import LiveRun

_INTERVAL_S = 0.05
_SHOWN_S = 1.0
"""A tick comes at least so often: a page that gets none knows that the connection is gone."""


class Ticker:
    """Makes the ticks of each run that somebody follows, once for all of them; for one event loop."""

    def __init__(self) -> None:
        self._followers: dict[LiveRun, set[asyncio.Event]] = {}
        self._tasks: dict[LiveRun, asyncio.Task[None]] = {}

    @property
    def num_followers(self) -> int:
        """How many follow runs."""
        return sum(map(len, self._followers.values()))

    @contextmanager
    def following(self, run: LiveRun) -> Iterator[asyncio.Event]:
        """Follow a run; the event is set after each tick, and whoever waits for it clears it."""
        ticked = asyncio.Event()
        self._followers.setdefault(run, set()).add(ticked)
        if run not in self._tasks:
            self._tasks[run] = asyncio.ensure_future(self._tick(run))
        try:
            yield ticked
        finally:
            self._followers[run].discard(ticked)
            if not self._followers[run]:
                self._followers.pop(run)
                self._tasks.pop(run).cancel()

    def wake_all(self) -> None:
        """Set the events of all followers."""
        for followers in self._followers.values():
            for each in followers:
                each.set()

    async def _tick(self, run: LiveRun) -> None:
        loop = asyncio.get_running_loop()
        shown_s = loop.time()
        while True:
            await asyncio.sleep(_INTERVAL_S)
            if not run.has_changed and not run.is_over and loop.time() - shown_s < _SHOWN_S:
                continue
            shown_s = loop.time()
            run.tick()
            for each in self._followers.get(run, ()):
                each.set()
