"""`--open`: a browser with windows gets no token that other users can read; one of the terminal is not started."""

from __future__ import annotations

import os
import stat
import webbrowser
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from urllib.parse import urlsplit

import pytest

from hocket.cli._browser import browser_at

ADDRESS = "http://127.0.0.1:28080/#token=a&b"


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


def test_a_browser_with_windows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    browser = _Windows()
    _use(monkeypatch, lambda: browser)
    with browser_at(ADDRESS):
        given = browser.given.get(timeout=20)
        file = Path(urlsplit(given).path)
        assert "token" not in given and stat.S_IMODE(os.stat(file).st_mode) == 0o600
        assert 'url=http://127.0.0.1:28080/#token=a&amp;b"' in file.read_text()
    assert not file.exists() and capsys.readouterr().err == ""


def test_one_that_the_user_names_may_be_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    browser = _Windows()
    _use(monkeypatch, lambda: browser, "/some/script")
    with browser_at(ADDRESS):
        assert browser.given.get(timeout=20) == ADDRESS


@pytest.mark.parametrize("kind", ["none", "terminal"])
def test_a_host_without_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    def get() -> object:
        if kind == "none":
            raise webbrowser.Error("could not locate runnable browser")
        terminal = webbrowser.GenericBrowser("lynx")
        monkeypatch.setattr(terminal, "open", _Terminal("lynx").open)
        return terminal

    _use(monkeypatch, get)
    with browser_at(ADDRESS):
        pass
    assert len(capsys.readouterr().err.splitlines()) == 1
