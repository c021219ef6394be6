"""Signals to the launcher: Ctrl-C, a second Ctrl-C, SIGTERM, and signals ignored at its start."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..naming import assert_names

pytestmark = pytest.mark.timeout(60)

WAIT = """
os.write(1, b"ready\\n")
while True: signal.pause()
"""


def test_interrupt_reaches_every_rank(start_job: Callable[..., Any]) -> None:
    job = start_job(WAIT, 2)
    assert [job.read_line(), job.read_line()] == ["ready\n", "ready\n"]
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130
    first, *lines = job.stderr.splitlines()
    assert_names(first, "hocket run", "SIGINT")
    assert sorted(line.partition(" (")[0] for line in lines) == [f"rank {n}: KeyboardInterrupt" for n in range(2)]
    assert "script.py:" in lines[0]
    assert job.leftovers() == []


def test_rank_that_ends_well_after_an_interrupt(start_job: Callable[..., Any]) -> None:
    job = start_job("signal.signal(signal.SIGINT, lambda *_: sys.exit(0))" + WAIT, 2)
    assert [job.read_line(), job.read_line()] == ["ready\n", "ready\n"]
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 0
    assert job.stderr == ""


def test_second_interrupt_kills(start_job: Callable[..., Any]) -> None:
    job = start_job("signal.signal(signal.SIGINT, lambda *_: os.write(1, b'heard\\n'))" + WAIT, 1)
    assert job.read_line() == "ready\n"
    job.process.send_signal(signal.SIGINT)
    assert job.read_line() == "heard\n"
    time.sleep(0.3)  # signals closer together count as one; only time separates them
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130
    assert job.stdout == ""
    assert_names(job.stderr.splitlines()[-1], "rank 0", "SIGKILL")


def test_terminate(start_job: Callable[..., Any]) -> None:
    job = start_job("signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'heard\\n'))" + WAIT, 1)
    assert job.read_line() == "ready\n"
    job.process.terminate()
    assert job.finish() == 143
    assert job.stdout == "heard\n"
    assert_names(job.stderr.splitlines()[0], "hocket run", "SIGTERM")


def test_control_c_in_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os, signal\n" + WAIT)
    program = (
        "from hocket.boot.launcher import launch\nfrom hocket.boot.rank_process import runner_command\n"
        "raise SystemExit(launch(runner_command(['script.py']), 1))"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-c", program])
    output = b""
    while b"ready" not in output:
        output += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    try:
        while chunk := os.read(terminal, 1024):
            output += chunk
    except OSError:
        pass  # how Linux reports the end of a terminal
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130, output
    assert output.count(b"KeyboardInterrupt") == 1
    os.close(terminal)


def test_ignored_interrupt_stays_ignored(tmp_path: Path) -> None:
    # As a shell starts a script's background jobs.
    program = (
        "import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from hocket.boot.launcher import launch\n"
        "raise SystemExit(launch(['sh', '-c', 'kill -INT $PPID; kill -INT $$; echo well'], 1))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")
