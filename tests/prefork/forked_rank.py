"""A rank, or another Python program, that is forked from this process instead of being started afresh."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import struct
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import NoReturn

from hocket.boot import runner
from hocket.boot.rank_process import Descriptors, RankProcess, runner_command

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
MARK = "HOCKET_TEST_MARK"
_prctl = ctypes.CDLL(None).prctl
_MOST_DESCRIPTORS = 4096
_CODE_OF_FAILED_FLUSH = 120  # CPython's, of Py_RunMain


_RUNNER = runner_command([])


def start_rank(rank: int, command: list[str], env: Mapping[str, str], descriptors: Descriptors) -> RankProcess:
    """Take the place of `RankProcess`: fork where the command is a Python program that `runner_command` made."""
    if command[: len(_RUNNER)] != _RUNNER:
        return RankProcess(rank, command, env, descriptors)
    return ForkedRank(rank, command[len(_RUNNER) :], env, descriptors)


class ForkedRank(RankProcess):
    """A forked rank in a process group of its own.

    Args:
        rank: number of the rank.
        arguments: ``["script.py", *args]`` or ``["-m", "module", *args]``.
        env: all its variables.
        descriptors: as of `RankProcess`.
    """

    def __init__(self, rank: int, arguments: list[str], env: Mapping[str, str], descriptors: Descriptors) -> None:
        self.rank, self.says_ready = rank, descriptors.ready is not None
        self.started_s = time.time()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            for fd, own in ((descriptors.stdout, 1), (descriptors.stderr, 2)):
                if fd is not None:
                    os.dup2(fd, own)
            if descriptors.recorder is not None:
                env = {**env, "HOCKET_RECORDER_FD": str(descriptors.recorder)}
            kept = [fd for fd in (descriptors.mpi, descriptors.recorder) if fd is not None]
            become_program(parent, arguments, env, kept)
        if descriptors.ready is not None:
            os.write(descriptors.ready, struct.pack("=I", rank))  # it is up already
        self._process = _Child(pid)  # type: ignore[assignment]
        self.pidfd = os.pidfd_open(pid)


class _Child:
    """What `RankProcess` needs of a `Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


def process_name(mark: str) -> bytes:
    """Return the name in /proc of processes that were forked with HOCKET_TEST_MARK set, as their variables are not seen
    there."""
    return f"t-{mark}".encode()[:15]


def end_with(parent: int) -> None:
    """Let this process be killed when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def start_afresh(parent: int, environment: Mapping[str, str]) -> None:
    """Make a forked child look like a program that was just started: group, signals, variables."""
    os.setpgid(0, 0)
    end_with(parent)
    if MARK in environment:
        _prctl(_PR_SET_NAME, process_name(environment[MARK]), 0, 0, 0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # else temporary folders of the parent would go
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # as a new process does; `random` does so by itself after a fork
    os.environ.clear()
    os.environ.update(environment)


def become_program(
    parent: int, arguments: Sequence[str], environment: Mapping[str, str], kept: Sequence[int] = ()
) -> NoReturn:
    """Run a program as `hocket.boot.runner` does, and end as an interpreter would but for freeing its memory.

    The descriptors `kept` stay open.
    """
    code = _CODE_OF_FAILED_FLUSH
    try:
        start_afresh(parent, environment)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        # No object that owns one is let go: the frames above this one live on.
        first = 3
        for fd in sorted(kept):
            os.closerange(first, fd)
            first = fd + 1
        os.closerange(first, _MOST_DESCRIPTORS)
        try:
            runner.main(list(arguments))
            end = 0
        except SystemExit as left:
            end = left.code if isinstance(left.code, int) else int(left.code is not None)
            if not isinstance(left.code, int | None):
                print(left.code, file=sys.stderr)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        if _is_flushed("stdout") and _is_flushed("stderr"):
            code = end
    finally:
        os._exit(code)


def _is_flushed(name: str) -> bool:
    stream = getattr(sys, name)
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except OSError as error:
        print(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}", file=sys.__stderr__, flush=True)
        return False
    return True
