"""A page in a browser, with all that it complains of."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..load import scaled

CHROMIUM = "/usr/bin/chromium"
_ABORTED = "net::ERR_ABORTED"
"""By the page itself, when something else is to be shown."""
_AXE = Path(__file__).parents[2] / "ui/node_modules/axe-core/axe.min.js"


class BrowserPage:
    """A page of the browser, and all that it complained of.

    Args:
        browser: that shows it.
        address: of the page.
        ready: what is there when the page is.
        options: of the context of the browser.
    """

    def __init__(self, browser: Any, address: str, *, ready: str = "nav a", **options: Any) -> None:
        self._open(browser.new_context(**options), address, ready)

    @classmethod
    def beside(cls, other: BrowserPage, address: str, ready: str = "nav a") -> BrowserPage:
        """A page of the same browser, with the same session and the same connections; it is closed with the first."""
        page = cls.__new__(cls)
        page._open(other.context, address, ready)
        return page

    def _open(self, context: Any, address: str, ready: str) -> None:
        self.context = context
        self.page = context.new_page()
        self.problems: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on(
            "requestfailed", lambda request: self.problems.append(request.url) if request.failure != _ABORTED else None
        )
        self.page.on("request", lambda request: self.problems.append(request.url) if not request.url.startswith(
            (address.partition("#")[0], "data:", "blob:")) else None)  # fmt: skip
        self.page.goto(address)
        self.page.wait_for_selector(ready)

    def __enter__(self) -> BrowserPage:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def until(self, expression: str, seconds: float = 10.0) -> None:
        """Wait until an expression is true; the page's policy allows no script to do so."""
        deadline = time.monotonic() + scaled(seconds)
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, expression
            self.page.wait_for_timeout(30)

    def show(self, view: str) -> None:
        """Show a view, and wait until it is there."""
        self.page.click(f"nav a[href$='/{view}']")
        # The address changes first: until then the page has the headings of the view before.
        self.page.wait_for_selector(f"nav a[href$='/{view}'][aria-current=page]")
        self.page.wait_for_selector("main h2")
        self.until("!document.querySelector('main [aria-live]')?.textContent.includes('asking')")

    @property
    def views(self) -> list[str]:
        """The names of all views."""
        return [each.get_attribute("href").rpartition("/")[2] for each in self.page.query_selector_all("nav a")]

    def accessibility(self) -> list[str]:
        """What axe-core finds."""
        self.page.evaluate(_AXE.read_text())
        found = self.page.evaluate("async () => (await axe.run(document)).violations")
        return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]
