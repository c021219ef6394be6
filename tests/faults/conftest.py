"""Run real jobs with deliberate faults, and check that nothing is left of them."""

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
    """A started job: its processes, and their output once they have ended."""

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
        """Wait for the end of all processes and collect their output."""
        outputs = [process.communicate(timeout=DEADLINE_S) for process in self.processes]
        self.ended_s = time.monotonic()
        self.return_codes = [process.returncode for process in self.processes]
        self.stdout = "".join(output for output, _ in outputs)
        self.stderr = "".join(errors for _, errors in outputs)
        return self

    def notes(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return the notes of the ranks (see `prelude.note`) ordered by time, optionally of one event."""
        lines = [line for path in self.folder.glob("notes-*") for line in path.read_text().splitlines()]
        notes = sorted((json.loads(line) for line in lines), key=lambda note: note["time_s"])
        return [note for note in notes if event is None or note["event"] == event]

    def records(self) -> dict[int, Any]:
        """Return the failure records by rank."""
        paths = (self.folder / "records").glob("rank-*.json")
        return {int(path.stem.removeprefix("rank-")): json.loads(path.read_text()) for path in paths}

    def wait_for_note(self, event: str, count: int = 1) -> None:
        deadline = time.monotonic() + scaled(DEADLINE_S)
        while len(self.notes(event)) < count:
            assert time.monotonic() < deadline, f"no note {event!r}"
            assert any(process.poll() is None for process in self.processes), "".join(
                process.communicate()[1] for process in self.processes
            )
            time.sleep(0.01)


class Jobs:
    """Starts jobs; after the test, checks that they left no processes, files or shared memory."""

    def __init__(self, folder: Path, launcher_command: Callable[[str], list[str]], is_fresh: bool) -> None:
        self._folder = folder
        self._launcher_command = launcher_command
        self._is_fresh = is_fresh
        self._uses_open_mpi = False
        self._jobs: list[Job] = []
        self._ports: list[ReservedPort] = []
        self._shared_memory = set(os.listdir("/dev/shm"))

    def run(self, script: str, num_ranks: int, *args: str, **options: Any) -> Job:
        """Run a script under ``hocket run`` until it ends."""
        return self.start(script, num_ranks, *args, **options).finish()

    def start(
        self, script: str, num_ranks: int, *args: str, torchrun: bool = False, open_mpi: bool = False, **env: str
    ) -> Job:
        """Start a script, with the names of prelude.py, under a launcher; the default is ``hocket run``."""
        if open_mpi:
            # Keep the survivors of a rank running, as `hocket run` does until they have reported.
            command = [*self._launcher_command("open mpi")[:-1], "--runtime-options", "recover", sys.executable]
            self._uses_open_mpi = True
        elif torchrun:
            command = [str(_BIN / "torchrun"), "--standalone", f"--nproc-per-node={num_ranks}"]
        else:
            command = [sys.executable, "-m", "hocket.cli", "run", "-n", str(num_ranks)]
        return self._start(script, [(command, {})], args, env)

    def start_on_hosts(self, script: str, num_local: int, *args: str, num_hosts: int = 2, **env: str) -> Job:
        """Start a script on several simulated hosts, all on this machine, with `num_local` ranks each."""
        port = self._reserve_port()
        command = [sys.executable, "-m", "hocket.cli", "run", "-n", str(num_local)]
        command += ["--nnodes", str(num_hosts), "--master-addr", "127.0.0.1", "--master-port", str(port)]
        starts = [([*command, "--node-rank", str(host)], {"HOCKET_HOST": f"host-{host}"}) for host in range(num_hosts)]
        return self._start(script, starts, args, env)

    def start_ranks(self, script: str, places: Sequence[tuple[int, int]], *args: str, **env: str) -> Job:
        """Start one process for each (rank, world size) without a launcher."""
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
        """Start a command; in the quick tier, Python programs use the fork server unless the test needs fresh ranks."""
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
            own = ("torchelastic_", "torchinductor_")  # logs of torchrun, and a cache of torch
            assert [name for name in left if not name.startswith(own)] == []
        # Leaked segments would stay; those of other programs on this machine appear and disappear.
        deadline = time.monotonic() + 5
        while left := [name for name in set(os.listdir("/dev/shm")) - self._shared_memory if not _is_in_use(name)]:
            # Open MPI leaves the segments of killed ranks. UCX unlinks a name right after creation, but leaves it if
            # the rank is killed in between.
            # The recorder of a rank that was killed stays until the next start of a program with hocket.
            foreign = ("ucx_shm_posix_", "hocket-recorder-", *(["sm_segment."] if self._uses_open_mpi else []))
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
            for pid in _processes_of(job):  # ranks have separate process groups
                os.kill(pid, signal.SIGKILL)
        for port in self._ports:
            port.close()

    def _reserve_port(self) -> int:
        self._ports.append(ReservedPort())
        return self._ports[-1].number


def _processes_of(job: Job) -> list[int]:
    """Return all processes that inherited the job's mark, as a variable or as a name, whatever their parent is."""
    mark, process = f"{MARK}={job.mark}".encode(), process_name(job.mark)
    pids = []
    for name in os.listdir("/proc"):
        try:
            if not name.isdigit():
                continue
            folder = Path("/proc", name)
            if (folder / "comm").read_bytes().strip() == process or mark in (folder / "environ").read_bytes():
                pids.append(int(name))
        except OSError:
            continue  # the process has ended, or belongs to another user
    return pids


def _is_in_use(name: str) -> bool:
    """Return whether a process maps the shared memory; all of ours have ended, so it belongs to another program."""
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
    """Return run(script, num_ranks, *args, torchrun=False, **environment) -> Job; the job has ended."""
    return jobs.run


@pytest.fixture
def run_on_hosts(jobs: Jobs) -> Callable[..., Job]:
    """Return run(script, num_local, *args, num_hosts=2, **environment) -> Job; the job has ended."""
    return lambda *args, **options: jobs.start_on_hosts(*args, **options).finish()
