"""Runs the owner of a store and its HTTP interface until they are told to end."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Event
from typing import Any

from hocket.errors import InvalidArgument, MissingPackage
from hocket.observe.serve.access import Access, read_token
from hocket.observe.serve.opened_results import OpenedResults
from hocket.observe.serve.page_files import PageFiles
from hocket.observe.serve.run_loader import RunLoader, name_in_store
from hocket.observe.serve.state import ServerState
from hocket.observe.store.opening import open_store
from hocket.observe.store.overview import QUESTIONS, sql_of
from hocket.observe.store.owner import Retention

DEFAULT_PORT = 28080
_MOST_CONNECTIONS = 1000
_NEXT_REQUEST_S = 75.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of malloc.h."""
_LARGEST_KEPT_NBYTES, _KEPT_NBYTES = 32 << 20, 256 << 20
_END_S = 10
_LOOK_S = 0.2
_TRIED_PORTS = 100


def serve_store(
    folder: str | Path, *, runs: Sequence[str | Path] = (), host: str = "127.0.0.1", port: int | None = None,
    names: Sequence[str] = (),
    retention: Retention | None = None, base_path: str = "", on_ready: Callable[[str], object] | None = None,
    until: Event | None = None, results: OpenedResults | None = None, code: str = "",
) -> None:  # fmt: skip
    """Own a store of runs and answer requests until SIGINT or SIGTERM; then what waits is sealed.

    Needs ``pip install 'hocket[store]'``. `StoreClient` sends runs and asks; `query_stored` reads the files.

    Args:
        folder: of the store; made if it does not exist. Its file ``token`` is what requests must show. Or the address
            of a database of ClickHouse, ``clickhouse://USER:PASSWORD@HOST:8123/DATABASE``; then the token is in a
            folder of this user, ``~/.local/state/hocket/stores/HOST-PORT-DATABASE``.
        runs: folders of recorded runs, or of their tables, to bring into it; runs that go on are followed.
        host: address to listen at.
        port: to listen at; 0: any free one; None: 28080, or the first one behind it that is free.
        names: further names that requests may use for this host, besides its address and host name.
        retention: what is removed when.
        base_path: of all requests, if a proxy in front of this does not take it away, as in "/user/me/proxy/28080".
        on_ready: is called with the address, such as "http://127.0.0.1:28080", as soon as requests are answered.
        until: when it is set, this ends as by a signal; signals come to the main thread only.
        results: files that the page shows beside the runs, of `open_results`.
        code: a secret that a browser may show in place of the token: once, in the first minute. Other users of the host
            can read what a browser is started with, so give it an address with this. "": there is no code.

    Raises:
        InvalidArgument: the folder is something else, or the address cannot be had.
        InvalidState: another process owns the store.
        MissingPackage: a package that the store needs is not installed.
        AuthenticationError, PeerFailure: ClickHouse refuses the password, or cannot be reached.

    Examples:
        >>> from queue import Queue
        >>> from threading import Event, Thread
        >>> from hocket import observe
        >>> end, urls = Event(), Queue()
        >>> options = {"port": 0, "on_ready": urls.put, "until": end}
        >>> owner = Thread(target=observe.serve_store, args=("served",), kwargs=options)
        >>> owner.start()
        >>> urls.get(timeout=60).startswith("http://127.0.0.1:")
        True
        >>> end.set()
        >>> owner.join()
    """
    try:
        import uvicorn

        from hocket.observe.serve.application import make_application
    except ImportError as error:
        raise MissingPackage(f"{error.name} is missing, which the store needs: pip install 'hocket[store]'") from None
    for name in names:
        if ":" in name.strip("[]") and not name.startswith("["):
            raise InvalidArgument(f"a name of this host has no port: {name!r:.80}")
    _keep_freed_memory()
    at = _first_listener(host) if port is None else _listener(host, port)
    with at as listener, open_store(folder, retention) as owner:
        token = read_token(owner.folder)
        found_host, found_port = listener.getsockname()[:2]
        shown = f"[{found_host}]" if ":" in found_host else found_host
        own = {"localhost", "127.0.0.1", "[::1]", socket.gethostname(), shown, host}
        known = tuple(name.lower() for name in {*own, *names})

        threading.Thread(target=_compile_questions, name="questions", daemon=True).start()

        async def main() -> None:
            state = ServerState(owner, Access(token, known, code), base_path, results)
            loaders = [RunLoader(owner, state.live, Path(run), name_in_store(Path(run))) for run in runs]
            for loader in loaders:
                loader.start()
            config = uvicorn.Config(
                make_application(state, PageFiles()), http=_impatient_protocol(), loop="asyncio", lifespan="off",
                log_level="error", access_log=False, server_header=False, limit_concurrency=_MOST_CONNECTIONS,
                timeout_keep_alive=int(_NEXT_REQUEST_S), timeout_graceful_shutdown=_END_S,
            )  # fmt: skip
            running = uvicorn.Server(config)
            # Its handlers would end the process before what waits is sealed.
            running.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGINT, signal.SIGTERM):
                    asyncio.get_running_loop().add_signal_handler(number, setattr, running, "should_exit", True)
            task = asyncio.ensure_future(running.serve([listener]))
            try:
                while not running.started and not task.done():
                    await asyncio.sleep(0.01)
                if on_ready is not None and running.started:
                    on_ready(f"http://{shown}:{found_port}")
                while not task.done():
                    await asyncio.wait([task], timeout=_LOOK_S)
                    running.should_exit |= until is not None and until.is_set()
                    if running.should_exit:
                        state.end_streams()
                await task
            finally:
                running.should_exit = True
                for loader in loaders:
                    loader.stop()
                state.close()

        asyncio.run(main())


def _first_listener(host: str) -> socket.socket:
    """Listen at the default port, or at the first one behind it that is free."""
    for port in range(DEFAULT_PORT, DEFAULT_PORT + _TRIED_PORTS - 1):
        with suppress(InvalidArgument):
            return _listener(host, port)
    return _listener(host, DEFAULT_PORT + _TRIED_PORTS - 1)


def _keep_freed_memory() -> None:
    """Have what long bodies and answers have taken used again.

    Given back, it would come back page by page, which takes longer than to receive a body.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of the GNU C library
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_NBYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_NBYTES)


def _compile_questions() -> None:
    """Have the SQL of all questions before somebody asks."""
    for question in QUESTIONS:
        sql_of(question, "duckdb")


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sends what is short at once only for sockets whose protocol is named; others wait for 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # others find it taken from here on
    except (OSError, OverflowError) as error:
        raise InvalidArgument(f"nothing can listen at {host} port {port}: {error}") from None
    return listener


def _impatient_protocol() -> Any:
    """HTTP, but who asks nothing is sent away."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class ImpatientProtocol(HttpToolsProtocol):
        """Closes a connection whose next request does not come, or does not come to the end of its head."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._deadline: asyncio.TimerHandle | None = None
            self._expect_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self._request_has_come()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._expect_request()
            else:
                self._request_has_come()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._expect_request()

        def _expect_request(self) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(_NEXT_REQUEST_S, self.transport.close)

        def _request_has_come(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return ImpatientProtocol
