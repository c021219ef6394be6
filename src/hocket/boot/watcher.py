"""Wait for several file descriptors, each with a function to call when it is ready."""

from __future__ import annotations

import selectors
from collections.abc import Callable


class Watcher:
    """A selector that calls a function for each ready descriptor; `close` it at the end."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, fd: int, react: Callable[[], None], events: int = selectors.EVENT_READ) -> None:
        """Call `react` whenever `fd` is ready; no effect if it is already watched."""
        if fd not in self._selector.get_map():
            self._selector.register(fd, events, react)

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`; no effect if it is not watched."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def wait(self, timeout_s: float | None) -> None:
        """Wait until a descriptor is ready, and call the functions of all ready ones.

        Args:
            timeout_s: seconds; None: no limit.
        """
        for key, _ in self._selector.select(timeout_s):
            key.data()

    def close(self) -> None:
        self._selector.close()
