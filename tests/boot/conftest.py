"""Start real jobs from the text of a script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

DEADLINE_S = 30.0

# The launcher runs in its own process, so that a test can send it signals and check what remains after it.
_DRIVER = """
import sys
from pathlib import Path
from hocket.boot.launcher import launch
from hocket.boot.rank_process import runner_command
from hocket.boot.supervisor import Patience
num_ranks, tag, term_after_s, kill_after_s, timeout_s, mpi_start_s, mpi_named_after_s = sys.argv[1:8]
patience = Patience(
    float(term_after_s), float(kill_after_s), float(timeout_s) or None,
    mpi_start_s=float(mpi_start_s), mpi_named_after_s=float(mpi_named_after_s),
)
sys.exit(launch(runner_command(sys.argv[8:]), int(num_ranks), tag_output=tag == "tag", patience=patience))
"""

# Code shared by the tests' scripts: the rank, and synchronization of two ranks by named pipes.
_PRELUDE = """
import os, signal, subprocess, sys, time
RANK = int(os.environ.get("RANK", 0))
def tell(name):
    open(name, "w").close()
def await_(name):
    open(name).close()
"""


class Job:
    """A running launcher; every process of the job inherits the pipes of its output."""

    def __init__(self, process: subprocess.Popen[str], temporary: Path) -> None:
        self.process = process
        self.temporary = temporary
        self.stdout = ""
        self.stderr = ""

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def read_error(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def finish(self) -> int:
        """Wait for the end of the pipes, which comes when the last process of the job has ended."""
        self.stdout, self.stderr = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode

    def leftovers(self) -> list[str]:
        return os.listdir(self.temporary)


StartJob = Callable[..., Job]


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[StartJob]:
    """Return start(script, num_ranks, *args, tag=False, term_after_s, kill_after_s, timeout_s, fifos, env)."""
    jobs: list[Job] = []
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def start(
        script: str,
        num_ranks: int,
        *args: str,
        tag: bool = False,
        term_after_s: float = 0.3,
        kill_after_s: float = 0.8,
        timeout_s: float = 0.0,
        mpi_start_s: float = 600.0,
        mpi_named_after_s: float = 300.0,
        fifos: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> Job:
        (tmp_path / "script.py").write_text(_PRELUDE + script)
        for name in fifos:
            os.mkfifo(tmp_path / name)
        limits = (term_after_s, kill_after_s, timeout_s, mpi_start_s, mpi_named_after_s)
        options = [str(num_ranks), "tag" if tag else "plain", *map(str, limits)]
        process = subprocess.Popen(
            [sys.executable, "-c", _DRIVER, *options, "script.py", *args],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(temporary), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        jobs.append(Job(process, temporary))
        return jobs[-1]

    yield start
    for job in jobs:
        if job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.wait()
        for pipe in (job.process.stdout, job.process.stderr):
            if pipe is not None:
                pipe.close()
