"""Runs a job below the process that records it: if that one is killed, the job is ended, and the user is told."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from types import FrameType

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_REAP_S = 1.0
_ENDING_S = 10.0
"""`hocket run` kills ranks 6 s after SIGTERM."""
_LOOK_S = 0.02
_prctl = ctypes.CDLL(None).prctl


def run_recorded(command: Sequence[str]) -> int:
    """Run a command that records a job, and return its exit code.

    If it is killed, what it has started is ended: SIGTERM, then SIGKILL. Orphans become children of this process, so
    that none of them stays. If this process is killed, the command gets SIGTERM.

    Args:
        command: `hocket observe run` with the command of the job.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    own = os.getpid()
    asked: list[int] = []
    agents: list[subprocess.Popen[bytes]] = []
    with _passing_on(asked, agents):
        # Inherited descriptors stay open: a launcher that started this process may speak to its ranks through one.
        agent = subprocess.Popen(list(command), close_fds=False, preexec_fn=lambda: _end_with(own))
        agents.append(agent)
        for number in asked:
            agent.send_signal(number)
        code = _wait_for(agent)
        if code >= 0:
            return code
        were_killed = _end_orphans()
    if -code not in asked:
        end = "had to be killed" if were_killed else "were ended"
        name = signal.Signals(-code).name
        print(f"hocket run: the process {agent.pid} that recorded the run was killed by {name}; the ranks {end}",
              file=sys.stderr)  # fmt: skip
    return 128 - code


def _end_with(parent: int) -> None:
    """In a new process: get SIGTERM when its parent dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)


@contextmanager
def _passing_on(asked: list[int], agents: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Pass signals on meanwhile, and note them; a terminal sends Ctrl-C to all processes of the job itself."""

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        for agent in agents if number != signal.SIGINT else ():
            agent.send_signal(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_FORWARDED)}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_for(agent: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a child, and meanwhile take the exit codes of orphans, which nobody asks for."""
    fd = os.pidfd_open(agent.pid)
    try:
        while not select.select([fd], [], [], _REAP_S)[0]:
            _reap(agent.pid)
    finally:
        os.close(fd)
    return agent.wait()


def _reap(spared: int = 0) -> bool:
    """Take the exit codes of all children that have ended, up to one that is spared; return whether children run."""
    with suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if found.si_pid == spared:
                return True
            os.waitpid(found.si_pid, 0)
        return True
    return False


def _end_orphans() -> bool:
    """End all processes below this one; return whether some had to be killed."""
    from hocket.observe.processes import descendants_of, parents

    own = os.getpid()
    for child in [pid for pid, parent in parents().items() if parent == own]:
        _send(child, signal.SIGTERM)
    deadline_s = monotonic() + _ENDING_S
    were_killed = False
    while _reap():
        if monotonic() > deadline_s:
            were_killed = True
            for pid in descendants_of(own)[1:]:
                _send(pid, signal.SIGKILL)
        sleep(_LOOK_S)
    return were_killed


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(OSError):  # it has ended
        os.kill(pid, number)
