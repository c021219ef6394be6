"""Opening the page in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from threading import Thread

_OF_TERMINALS = (webbrowser.GenericBrowser, webbrowser.Elinks)
"""Exactly of these classes: they would take the terminal over until they end."""


def open_browser(address: str) -> None:
    """Open an address in a browser, and say on standard error if this host has none with windows.

    Every user of a host can read the arguments of a browser. A file that only this user can read would hide the
    address, but browsers in containers (snap, flatpak), and those on other hosts that the variable BROWSER may name,
    cannot read it.

    Args:
        address: with a code that is spent when the page is opened, never with the token.
    """
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        browser = None
    if browser is None or (not os.environ.get("BROWSER") and type(browser) in _OF_TERMINALS):
        print("hocket: this host has no browser with windows: open the address on your own host", file=sys.stderr)
    else:
        Thread(target=browser.open, args=(address,), daemon=True).start()
