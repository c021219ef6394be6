"""The page follows a run over connections that break: nothing is counted twice, nothing is missing, and it says what is
stale."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest

from hocket.observe import StoreClient
from hocket.observe.store.arrow_batches import arrow_table, write_batch

from ..load import scaled
from ..observe.stored_rows import columns_of, served
from .browser import BrowserPage

pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.timeout(300)
NUM_KILLS, BATCH_ROWS, RUN_S = 20, 50, 55.0


class _Proxy:
    """Forwards connections; cuts all of them, and takes none for a while, when told to."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_closing, self._refuses_until_s = threading.Event(), 0.0
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> _Proxy:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_closing.set()
        self._thread.join(20)
        self._listener.close()

    def cut(self, refused_s: float) -> int:
        """Cut all connections, refuse new ones for a time, and return how many there were."""
        with self._lock:
            self._refuses_until_s = time.monotonic() + refused_s
            cut = [*self._pairs]
            for each in cut:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        return len(cut) // 2

    def _forward(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._is_closing.is_set():
                for key, _ in selector.select(0.1):
                    if key.fileobj is self._listener:
                        self._take(selector)
                    elif isinstance(key.fileobj, socket.socket):
                        self._pass_on(selector, key.fileobj)
            for each in [*self._pairs]:
                each.close()

    def _take(self, selector: selectors.BaseSelector) -> None:
        taken, _ = self._listener.accept()
        if time.monotonic() < self._refuses_until_s:
            taken.close()
            return
        other = socket.create_connection(self._target, timeout=scaled(10))
        with self._lock:
            self._pairs |= {taken: other, other: taken}
        for each in (taken, other):
            each.settimeout(scaled(10))
            selector.register(each, selectors.EVENT_READ)

    def _pass_on(self, selector: selectors.BaseSelector, one: socket.socket) -> None:
        if one not in self._pairs:
            return
        try:
            content = one.recv(1 << 16)
            if content:
                self._pairs[one].sendall(content)
                return
        except OSError:
            pass
        with self._lock:
            other = self._pairs.pop(one)
            self._pairs.pop(other, None)
        for each in (one, other):
            selector.unregister(each)
            each.close()


class _Feeder(threading.Thread):
    """Sends operations of 8 processes, all over the first minute of the run, until it is told to stop."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(daemon=True)
        self._place = url, token
        self.has_to_stop = threading.Event()
        self.num_sent = 0
        self.problem: BaseException | None = None

    def run(self) -> None:
        """Send."""
        try:
            with StoreClient(*self._place) as client:
                while not self.has_to_stop.wait(0.02):
                    rows = columns_of("operations", BATCH_ROWS, self.num_sent, seconds=RUN_S)
                    rows["process"] = rows["rank"] = np.arange(BATCH_ROWS) % 8
                    rows["ended_s"], rows["weight"] = rows["began_s"] + 1e-3, np.ones(BATCH_ROWS, np.int64)
                    body = write_batch(arrow_table("operations", rows))
                    path = "/v1/runs/run-1/tables/operations/rows"
                    client.ask(path, method="POST", body=body, sender="a", first_row=self.num_sent)
                    self.num_sent += BATCH_ROWS
                    client.ask("/v1/runs/run-1/progress", method="POST", now_s=RUN_S)
        except BaseException as error:
            self.problem = error


@contextlib.contextmanager
def _fed(folder: Path) -> Iterator[tuple[StoreClient, _Feeder, str]]:
    """A store with a run that goes on, who feeds it, and the rest of the address of its page."""
    with served(folder / "store") as (_, client):
        client.ask("/v1/runs/run-1", method="PUT")
        client.ask("/v1/runs/run-1/progress", method="POST", now_s=0.0)
        token = client._headers["authorization"].partition(" ")[2]
        feeder = _Feeder(client._url, token)
        feeder.start()
        yield client, feeder, f"/#token={token}&/run-1/timeline"


_STATE = "document.querySelector('[data-state]')?.dataset.state"


def _check_all_events(client: StoreClient, feeder: _Feeder, shown: BrowserPage) -> None:
    """Stop, and compare the events of the page with those of the store."""
    feeder.has_to_stop.set()
    feeder.join(scaled(30))
    assert feeder.problem is None
    (answer,) = client.ask("/v1/runs/run-1/questions/totals")["rows"]
    assert answer[1] == feeder.num_sent
    shown.until(f"Number(document.querySelector('[data-state]').dataset.events) === {feeder.num_sent}", 20)
    shown.page.wait_for_timeout(500)
    assert shown.page.get_attribute("[data-state]", "data-events") == str(feeder.num_sent)


def test_many_pages_that_nobody_sees(browser: Any, tmp_path: Path) -> None:
    """A browser has six connections for all its pages of one server, and each page that follows a run holds one."""
    hide = "Object.defineProperty(document, 'visibilityState', {get: () => window.isSeen ? 'visible' : 'hidden'})"
    with _fed(tmp_path) as (client, feeder, address), BrowserPage(browser, client._url + address) as first:
        shown = first
        for _ in range(8):
            shown.until(f"{_STATE} === 'live'", 30)
            shown.page.evaluate(hide)
            shown.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
            shown.until(f"{_STATE} === 'connecting'", 30)
            shown = BrowserPage.beside(first, client._url + address)
        shown.until(f"{_STATE} === 'live'", 30)
        first.page.evaluate("window.isSeen = true")
        first.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        first.until(f"{_STATE} === 'live'", 30)
        _check_all_events(client, feeder, first)
        assert first.problems == []


def test_a_page_whose_connection_is_cut_again_and_again(browser: Any, tmp_path: Path) -> None:
    with _fed(tmp_path) as (client, feeder, address):
        port = int(client._url.rpartition(":")[2])
        with (
            _Proxy(port) as proxy,
            BrowserPage(browser, f"http://127.0.0.1:{proxy.port}{address}") as shown,
        ):
            shown.until(f"{_STATE} === 'live'", 30)
            shown.page.evaluate("window.isTheSamePage = true")
            for number in range(NUM_KILLS):
                shown.page.wait_for_timeout(50)
                assert proxy.cut(2.0 if number % 5 == 0 else 0.0) > 0
                shown.until(f"{_STATE} === 'stale'")
                if number % 5 == 0:  # it is said to those who look and to those who listen
                    assert "stale" in shown.page.inner_text("[data-state]")
                    assert shown.page.get_attribute("[data-state]", "role") == "status"
                shown.until(f"{_STATE} === 'live'", 20)
            assert feeder.num_sent > NUM_KILLS * BATCH_ROWS
            _check_all_events(client, feeder, shown)
            assert shown.page.evaluate("window.isTheSamePage")
