"""`--open`: a browser with windows gets a code that is spent at once; one of the terminal is not started."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from queue import Queue
from time import monotonic
from urllib.parse import urlsplit

import pytest

from hocket.cli._browser import open_browser

from ..load import scaled
from ..observe.stored_rows import served

ADDRESS = "http://127.0.0.1:28080/#token=a"


class _Windows(webbrowser.BackgroundBrowser):
    """Notes what it is given."""

    def __init__(self) -> None:
        super().__init__("windows")
        self.given: Queue[str] = Queue()

    def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
        """Note an address."""
        self.given.put(url)
        return True


class _Terminal(webbrowser.GenericBrowser):
    def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
        """Must not be called."""
        raise AssertionError(url)


def _use(monkeypatch: pytest.MonkeyPatch, get: Callable[[], object], variable: str = "") -> None:
    monkeypatch.setattr(webbrowser, "get", get)
    monkeypatch.setenv("BROWSER", variable)


@pytest.mark.parametrize("variable", ["", "/some/script"])
def test_a_browser(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str) -> None:
    browser = _Windows()
    _use(monkeypatch, lambda: browser, variable)
    open_browser(ADDRESS)
    assert browser.given.get(timeout=20) == ADDRESS and capsys.readouterr().err == ""


def test_a_browser_gets_a_code_that_is_spent_when_the_page_is_opened(tmp_path: Path) -> None:
    """Its arguments, which other users can read, never have the token; a real server, and a script as browser."""
    given, script = tmp_path / "given", tmp_path / "browser"
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > {given}.part && mv {given}.part {given}\n')
    script.chmod(0o700)
    with served(tmp_path / "store", "--open", variables={"BROWSER": str(script)}) as (_, client):
        deadline_s = monotonic() + scaled(30)
        while not given.exists():
            assert monotonic() < deadline_s
        page, code = given.read_text().split("#token=")
        token = (tmp_path / "store" / "token").read_text().strip()
        assert token not in given.read_text() and len(code) >= 40
        host = urlsplit(page).netloc

        def ask(method: str, path: str, **headers: str) -> tuple[int, str]:
            connection = HTTPConnection(host, timeout=scaled(20))
            try:
                connection.request(method, path, headers=headers)
                answer = connection.getresponse()
                answer.read()
                return answer.status, answer.headers.get("set-cookie", "").partition(";")[0]
            finally:
                connection.close()

        def bearer(text: str) -> dict[str, str]:
            return {"authorization": f"Bearer {text}"}

        assert ask("GET", "/v1/runs", **bearer(code))[0] == 401
        assert ask("POST", "/v1/session", **bearer(code[:-1]))[0] == 401
        assert ask("POST", "/v1/session", **bearer(code), host="evil.example")[0] == 421
        assert ask("POST", "/v1/session")[0] == 401
        status, cookie = ask("POST", "/v1/session", **bearer(code))
        assert status == 200 and ask("GET", "/v1/runs", cookie=cookie)[0] == 200
        _, own = ask("POST", "/v1/session", **bearer(token))
        assert ask("POST", "/v1/session", **bearer(code)) == (401, "")
        assert ask("GET", "/v1/runs", cookie=cookie)[0] == 401  # one of both was not the browser
        assert ask("GET", "/v1/runs", cookie=own)[0] == 200 and client.ask("/v1/runs")["runs"] == []


@pytest.mark.parametrize("kind", ["none", "terminal"])
def test_a_host_without_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    def get() -> object:
        if kind == "none":
            raise webbrowser.Error("could not locate runnable browser")
        terminal = webbrowser.GenericBrowser("lynx")
        monkeypatch.setattr(terminal, "open", _Terminal("lynx").open)
        return terminal

    _use(monkeypatch, get)
    open_browser(ADDRESS)
    assert len(capsys.readouterr().err.splitlines()) == 1
