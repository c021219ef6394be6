"""Waits for several file descriptors, each with a function to call when it is ready."""

from __future__ import annotations

import selectors
from collections.abc import Callable


class Watcher:
    """A selector whose keys are reactions; `close` it at the end."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, fd: int, react: Callable[[], None], events: int = selectors.EVENT_READ) -> None:
        """Call `react` whenever `fd` is ready; nothing changes if it is watched already."""
        if fd not in self._selector.get_map():
            self._selector.register(fd, events, react)

    def unwatch(self, fd: int) -> None:
        """Stop to watch `fd`; nothing changes if it is not watched."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def wait(self, timeout_s: float | None) -> None:
        """Wait until something is ready, and call what reacts to it.

        Args:
            timeout_s: seconds; None: without a limit.
        """
        for key, _ in self._selector.select(timeout_s):
            key.data()

    def close(self) -> None:
        self._selector.close()
