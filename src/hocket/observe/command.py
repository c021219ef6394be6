"""The command of a recorded run: how it is started, and who gets the signals."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from hocket.errors import InvalidArgument

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers and users send to one process."""


def check_command(command: Sequence[str]) -> None:
    """Refuse an empty command."""
    if not command:
        raise InvalidArgument("a command is needed, such as python train.py")


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command; until the end of the context it decides itself what signals do.

    A terminal sends Ctrl-C to the command, too, so this process ignores it; other signals are passed on. Only the main
    thread of Python gets signals: in another one nothing changes.

    Raises:
        InvalidArgument: the command cannot be started.
    """
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    with _handling({signal.SIGINT: _ignore, **dict.fromkeys(_FORWARDED, forward)}):
        try:
            # Inherited descriptors stay open: a launcher that started this process may speak to its ranks through one.
            process = subprocess.Popen(list(command), env=environment, close_fds=False)
        except OSError as error:
            raise InvalidArgument(f"{command[0]} cannot be started: {error.strerror}") from None
        for number in early:
            process.send_signal(number)
        yield process


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass  # not SIG_IGN, which the command would inherit


@contextmanager
def _handling(handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A signal that was ignored before stays ignored, as for a program under nohup.
    before = {number: signal.getsignal(number) for number in handlers}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
