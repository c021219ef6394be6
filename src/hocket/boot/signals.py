"""Signals to the launcher, as a socket for a selector."""

from __future__ import annotations

import signal
import socket
import threading
from types import FrameType, TracebackType
from typing import Any

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalInbox:
    """Collects SIGINT, SIGTERM and SIGHUP while it is entered; `socket` becomes readable when one arrives.

    A signal that is ignored on entry stays ignored (nohup, a background job of a script). Outside the main thread,
    where Python does not allow handlers, no signal is collected.
    """

    def __init__(self) -> None:
        self.socket, self._writer = socket.socketpair()
        self.socket.setblocking(False)
        self._writer.setblocking(False)
        self._received: list[int] = []
        self._previous: dict[int, Any] = {}
        self._previous_wakeup = -1

    def __enter__(self) -> SignalInbox:
        if threading.current_thread() is threading.main_thread():
            self._previous_wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            for number in _HANDLED:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._receive)
            # If the caller ignores SIGCHLD, the kernel would discard the ranks' exit codes.
            self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous:
            for number, handler in self._previous.items():
                # None: a handler that was not set from Python, so Python cannot restore it
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(self._previous_wakeup)
        self.socket.close()
        self._writer.close()

    def take(self) -> list[int]:
        """Return the signals since the last call, in order."""
        try:
            while self.socket.recv(64):
                pass
        except BlockingIOError:
            pass
        received, self._received = self._received, []
        return received

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)
