"""What the routes of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from hocket.observe.serve.access import Access
from hocket.observe.serve.live import LiveRuns
from hocket.observe.serve.opened_results import OpenedResults
from hocket.observe.serve.requests import Bodies, RequestRefused
from hocket.observe.serve.shared_answers import SharedAnswers
from hocket.observe.serve.ticker import Ticker
from hocket.observe.store.interface import RunInStore, RunStore

_SHARED_S = 1.0
_MOST_SHARED_NBYTES = 256 << 20
_NUM_QUERIES = 2

Result = TypeVar("Result")


class ServerState:
    """For one event loop.

    Args:
        owner: of the store.
        access: who may ask.
        base_path: of all requests, if a proxy does not take it away; "" or as in "/user/me/proxy/28080".
        results: files that the page shows beside the runs.

    Attributes:
        live: the runs that go on.
        ticker: tells those who follow them.
        bodies: of requests.
        shared: answers that readers share.
        queries: is held by each query in SQL; so many run at once.
        query_pool: threads for them.
    """

    def __init__(
        self, owner: RunStore, access: Access, base_path: str = "", results: OpenedResults | None = None
    ) -> None:
        self.owner = owner
        self.access = access
        self.base_path = base_path
        self.results = OpenedResults() if results is None else results
        self.live = LiveRuns()
        self.ticker = Ticker()
        self.is_closing = False
        self.bodies = Bodies()
        self.shared = SharedAnswers(_SHARED_S, _MOST_SHARED_NBYTES)
        self.num_queries = _NUM_QUERIES
        self.queries = asyncio.Semaphore(_NUM_QUERIES)
        self.query_pool = ThreadPoolExecutor(_NUM_QUERIES, "query")
        self._pool = ThreadPoolExecutor(4, "request")

    async def in_thread(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function that waits for files, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)

    async def found(self, name: str) -> RunInStore:
        """Return a run.

        Raises:
            InvalidArgument: the name is not valid.
            RequestRefused: there is no such run.
        """
        run = await self.in_thread(self.owner.find_run, name)
        if run is None:
            raise RequestRefused(404, f"there is no run {name}")
        return run

    def end_streams(self) -> None:
        """Let those who follow runs go."""
        self.is_closing = True
        self.ticker.wake_all()

    def close(self) -> None:
        """End the threads."""
        for pool in (self._pool, self.query_pool):
            pool.shutdown(wait=False, cancel_futures=True)
