"""`make test-loaded`: busy processes beside the tests, and deadlines multiplied by a factor.

A test's own deadline says how long it may take where nothing else runs. Beside eight busy processes two cores leave a
tenth of themselves, and what needs several processes at once waits for the slowest: so every deadline that a test gives
(its own, of `hocket.spawn`, of the programs it runs) is multiplied. What hocket promises by itself is not.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.boot.job_result import JobResult
from hocket.boot.supervisor import Patience

from .prefork.program import ForkedProgram

FACTOR_VARIABLE = "HOCKET_TEST_DEADLINE_FACTOR"
_BUSY = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]): sys.exit()
while True: pass
"""


def scaled(seconds: float) -> float:
    """Return a deadline in seconds, scaled for this run."""
    return seconds * float(os.environ.get(FACTOR_VARIABLE, "1"))


def patient(run_job: Callable[..., JobResult]) -> Callable[..., JobResult]:
    """Return a `hocket.boot.launcher.run_job` of `hocket.spawn` that waits as long as it is to be in this run, and so
    do the operations of its ranks."""

    def run(command: list[str], num_ranks: int, *, patience: Patience, **options: Any) -> JobResult:
        if patience.timeout_s is not None:
            patience = replace(patience, timeout_s=scaled(patience.timeout_s))
            settings = Path(command[-1], "settings")
            settings.write_text(json.dumps(json.loads(settings.read_text()) | {"timeout_s": patience.timeout_s}))
        return run_job(command, num_ranks, patience=patience, **options)

    return run


def scale_timeouts(items: list[pytest.Item], default_s: float) -> None:
    """Scale the deadline of every test for this run."""
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = marker.args[0] if marker is not None and marker.args else default_s
        item.add_marker(pytest.mark.timeout(scaled(seconds)), append=False)


def scale_subprocesses(patch: pytest.MonkeyPatch) -> None:
    """Let this process wait for its children, and for forked programs, as long as it is to in this run."""
    for kind in (subprocess.Popen, ForkedProgram):
        for name in ("wait", "communicate"):
            patch.setattr(kind, name, _scaling(getattr(kind, name)))


def _scaling(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that scales its `timeout`, but not where it is called by another such one."""

    signature = inspect.signature(method)

    @functools.wraps(method)
    def scale(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options).arguments
        if given.get("timeout") is None or getattr(_calls, "is_scaled", False):
            return method(**given)
        _calls.is_scaled = True
        try:
            return method(**given | {"timeout": scaled(given["timeout"])})
        finally:
            _calls.is_scaled = False

    return scale


_calls = threading.local()


class BusyProcesses:
    """Processes that only compute; they end with this process in any case.

    Args:
        count: number of processes.
    """

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-c", _BUSY, str(os.getpid())]
        # Each in its own session, as programs of other users: Linux may divide processor time between sessions.
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) for _ in range(count)
        ]

    def close(self) -> None:
        """End them; none may have ended before."""
        codes = [process.poll() for process in self._processes]
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(10)
        if any(code is not None for code in codes):
            raise RuntimeError(f"a busy process ended before the tests did: {codes}")
