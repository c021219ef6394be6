"""Starts real jobs that go wrong on purpose, and looks at what they leave behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hocket.reserved_port import ReservedPort

from ..load import scaled
from ..prefork.forked_rank import MARK, process_name
from ..prefork.program import ForkedProgram, start_fresh_program
from ..program import start_python

DEADLINE_S = 110.0
Running = subprocess.Popen[str] | ForkedProgram
_BIN = Path(sys.executable).parent
_PRELUDE = Path(__file__).parent / "prelude.py"


@dataclass
class Job:
    """A job that has ended, or is about to."""

    folder: Path
    mark: str
    processes: list[Running]
    return_codes: list[int] = field(default_factory=list)
    stdout: str = ""
    stderr: str = ""
    ended_s: float = 0.0

    @property
    def return_code(self) -> int:
        assert len(self.return_codes) == 1
        return self.return_codes[0]

    def finish(self) -> Job:
        """Wait for the end of what was started; then nothing of it may be left."""
        outputs = [process.communicate(timeout=DEADLINE_S) for process in self.processes]
        self.ended_s = time.monotonic()
        self.return_codes = [process.returncode for process in self.processes]
        self.stdout = "".join(output for output, _ in outputs)
        self.stderr = "".join(errors for _, errors in outputs)
        return self

    def notes(self, what: str | None = None) -> list[dict[str, Any]]:
        """What the ranks have noted, in the order of time; `what` selects."""
        lines = [line for path in self.folder.glob("notes-*") for line in path.read_text().splitlines()]
        notes = sorted((json.loads(line) for line in lines), key=lambda note: note["time_s"])
        return [note for note in notes if what is None or note["what"] == what]

    def records(self) -> dict[int, Any]:
        """The failure records by rank."""
        paths = (self.folder / "records").glob("rank-*.json")
        return {int(path.stem.removeprefix("rank-")): json.loads(path.read_text()) for path in paths}

    def wait_for_note(self, what: str, count: int = 1) -> None:
        deadline = time.monotonic() + scaled(DEADLINE_S)
        while len(self.notes(what)) < count:
            assert time.monotonic() < deadline, f"no note {what!r}"
            assert any(process.poll() is None for process in self.processes), "".join(
                process.communicate()[1] for process in self.processes
            )
            time.sleep(0.01)


class Jobs:
    """Starts jobs and checks, when the test is over, that nothing of them is left."""

    def __init__(self, folder: Path, launcher_command: Callable[[str], list[str]], is_fresh: bool) -> None:
        self._folder = folder
        self._launcher_command = launcher_command
        self._is_fresh = is_fresh
        self._uses_open_mpi = False
        self._jobs: list[Job] = []
        self._ports: list[ReservedPort] = []
        self._shared_memory = set(os.listdir("/dev/shm"))

    def run(self, script: str, num_ranks: int, *args: str, **options: Any) -> Job:
        """Run a script to its end under ``hocket run``."""
        return self.start(script, num_ranks, *args, **options).finish()

    def start(
        self, script: str, num_ranks: int, *args: str, torchrun: bool = False, open_mpi: bool = False, **env: str
    ) -> Job:
        """Start a script, which finds the names of prelude.py, under a launcher; ``hocket run`` by default."""
        if open_mpi:
            # It is told to leave the survivors of a rank alone, as `hocket run` does until they have had their say.
            command = [*self._launcher_command("open mpi")[:-1], "--runtime-options", "recover", sys.executable]
            self._uses_open_mpi = True
        elif torchrun:
            command = [str(_BIN / "torchrun"), "--standalone", f"--nproc-per-node={num_ranks}"]
        else:
            command = [sys.executable, "-m", "hocket.cli", "run", "-n", str(num_ranks)]
        return self._start(script, [(command, {})], args, env)

    def start_on_hosts(self, script: str, num_local: int, *args: str, num_hosts: int = 2, **env: str) -> Job:
        """Start a script on some hosts, which are this machine under other names: `num_local` ranks on each."""
        port = self._reserve_port()
        command = [sys.executable, "-m", "hocket.cli", "run", "-n", str(num_local)]
        command += ["--nnodes", str(num_hosts), "--master-addr", "127.0.0.1", "--master-port", str(port)]
        starts = [([*command, "--node-rank", str(host)], {"HOCKET_HOST": f"host-{host}"}) for host in range(num_hosts)]
        return self._start(script, starts, args, env)

    def start_ranks(self, script: str, places: Sequence[tuple[int, int]], *args: str, **env: str) -> Job:
        """Start one process for each (rank, world size) without any launcher."""
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._reserve_port()), "HOCKET_JOB": uuid.uuid4().hex}
        starts = [([sys.executable], {**common, "RANK": str(rank), "WORLD_SIZE": str(size)}) for rank, size in places]
        return self._start(script, starts, args, env)

    def _start(
        self, script: str, starts: list[tuple[list[str], dict[str, str]]], args: Sequence[str], env: dict[str, str]
    ) -> Job:
        folder = self._folder / f"job-{len(self._jobs)}"
        (folder / "temporary").mkdir(parents=True)
        shutil.copy(_PRELUDE, folder)
        (folder / "script.py").write_text("from prelude import *\n" + script)
        job = Job(folder, uuid.uuid4().hex, [])
        self._jobs.append(job)
        for command, variables in starts:
            job.processes.append(
                self._start_process(
                    [*command, "script.py", *args],
                    folder,
                    {
                        **os.environ,
                        "TMPDIR": str(folder / "temporary"),
                        "HOCKET_RECORD_DIR": str(folder / "records"),
                        MARK: job.mark,
                        "OMP_NUM_THREADS": "1",
                        "COLUMNS": "120",
                        **variables,
                        **env,
                    },
                )
            )
        return job

    def _start_process(self, command: list[str], folder: Path, environment: dict[str, str]) -> Running:
        """Start a command: by the fork server, where it is a Python program, this is the quick tier and it may be."""
        if command[0] != sys.executable or self._is_fresh:
            return start_fresh_program(command, folder=folder, environment=environment)
        return start_python(*command[1:], folder=folder, environment=environment)

    def check_leftovers(self) -> None:
        for job in self._jobs:
            deadline = time.monotonic() + 5
            while left := _processes_of(job):  # MPI's process manager ends a moment after the last rank
                assert time.monotonic() < deadline, f"still running: {left}"
                time.sleep(0.02)
            left = os.listdir(job.folder / "temporary")
            own = ("torchelastic_", "torchinductor_")  # torchrun keeps its logs, and torch a cache
            assert [name for name in left if not name.startswith(own)] == []
        # Ours would stay; names that other programs of this machine use come and go.
        deadline = time.monotonic() + 5
        while left := [name for name in set(os.listdir("/dev/shm")) - self._shared_memory if not _is_in_use(name)]:
            # Open MPI leaves those of ranks that were killed; UCX, which takes a name off as soon as it has made it,
            # leaves the one of a rank, of whichever job, that was killed between the two.
            foreign = ("ucx_shm_posix_", *(["sm_segment."] if self._uses_open_mpi else []))
            for name in left:
                if name.startswith(foreign):
                    Path("/dev/shm", name).unlink(missing_ok=True)
            assert time.monotonic() < deadline, f"left in /dev/shm: {left}"
            time.sleep(0.1)

    def close(self) -> None:
        for job in self._jobs:
            for process in job.processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            for pid in _processes_of(job):  # ranks have process groups of their own
                os.kill(pid, signal.SIGKILL)
        for port in self._ports:
            port.close()

    def _reserve_port(self) -> int:
        self._ports.append(ReservedPort())
        return self._ports[-1].number


def _processes_of(job: Job) -> list[int]:
    """Every process that has inherited the job's mark, as a variable or as its name, whoever its parent is now."""
    mark, process = f"{MARK}={job.mark}".encode(), process_name(job.mark)
    found = []
    for name in os.listdir("/proc"):
        try:
            if not name.isdigit():
                continue
            folder = Path("/proc", name)
            if (folder / "comm").read_bytes().strip() == process or mark in (folder / "environ").read_bytes():
                found.append(int(name))
        except OSError:
            continue  # ended meanwhile, or another user's
    return found


def _is_in_use(name: str) -> bool:
    """Whether some process, none of ours any more, has the shared memory mapped: then it is another program's."""
    for pid in os.listdir("/proc"):
        try:
            if pid.isdigit() and f"/dev/shm/{name}" in Path(f"/proc/{pid}/maps").read_text():
                return True
        except OSError:
            continue
    return False


@pytest.fixture
def jobs(
    tmp_path: Path, launcher_command: Callable[[str], list[str]], request: pytest.FixtureRequest
) -> Iterator[Jobs]:
    started = Jobs(tmp_path, launcher_command, request.node.get_closest_marker("fresh_ranks") is not None)
    try:
        yield started
        started.check_leftovers()
    finally:
        started.close()


@pytest.fixture
def run_job(jobs: Jobs) -> Callable[..., Job]:
    """Return run(script, num_ranks, *args, torchrun=False, **environment) -> Job, which has ended."""
    return jobs.run


@pytest.fixture
def run_on_hosts(jobs: Jobs) -> Callable[..., Job]:
    """Return run(script, num_local, *args, num_hosts=2, **environment) -> Job, which has ended."""
    return lambda *args, **options: jobs.start_on_hosts(*args, **options).finish()
