"""Opening the page in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from tempfile import mkstemp
from threading import Thread

_OF_TERMINALS = (webbrowser.GenericBrowser, webbrowser.Elinks)
"""Exactly of these classes: they would take the terminal over until they end."""


@contextmanager
def browser_at(address: str) -> Iterator[None]:
    """Open an address in a browser, and say on standard error if this host has none with windows.

    Every user of a host can read the arguments of a browser. So it is given a file that only this user can read, and
    that leads to the address. What the variable BROWSER names may be on another host, which has no such file: it is
    given the address.

    Args:
        address: with a token, which nobody else is to see.
    """
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        browser = None
    if os.environ.get("BROWSER") and browser is not None:
        Thread(target=browser.open, args=(address,), daemon=True).start()
        yield
    elif browser is None or type(browser) in _OF_TERMINALS:
        print("hocket: this host has no browser with windows: open the address on your own host", file=sys.stderr)
        yield
    else:
        descriptor, path = mkstemp(prefix="hocket-page-", suffix=".html")  # mode 600
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(address)}">\n')
            Thread(target=browser.open, args=(Path(path).as_uri(),), daemon=True).start()
            yield
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)
