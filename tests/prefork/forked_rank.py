"""A rank that is forked from this process instead of being started as a program."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, NoReturn

from hocket.boot import runner
from hocket.boot.rank_process import RankProcess, runner_command

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl
_MOST_DESCRIPTORS = 4096


class ForkedRank(RankProcess):
    """Takes the place of `RankProcess` for commands that `runner_command` made."""

    def __init__(self, rank: int, command: list[str], env: Mapping[str, str], *, piped: bool = False) -> None:
        prefix = runner_command([])
        assert command[: len(prefix)] == prefix and not piped
        self.rank = rank
        self.started_s = time.time()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            become_rank(parent, command[len(prefix) :], env)
        self._process = _Child(pid)  # type: ignore[assignment]
        self.pidfd = os.pidfd_open(pid)


class _Child:
    """What `RankProcess` needs of a `Popen`."""

    stdout: IO[bytes] | None = None
    stderr: IO[bytes] | None = None

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


def start_afresh(parent: int, environment: Mapping[str, str]) -> None:
    """Make a forked child look like a program that was just started: group, signals, variables."""
    os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.clear()
    os.environ.update(environment)


def become_rank(parent: int, arguments: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Run a program as `hocket.boot.runner` does, and end as an interpreter would but for freeing its memory."""
    code = 1
    try:
        start_afresh(parent, environment)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.closerange(3, _MOST_DESCRIPTORS)  # no object that owns one is let go: the frames above this one live on
        try:
            runner.main(arguments)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
