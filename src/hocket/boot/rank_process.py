"""One rank as a child process: its environment, start, process group and end."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hocket.boot.mpi_variables import without_mpi_variables
from hocket.boot.nodes import Nodes
from hocket.boot.readiness import READY_FD
from hocket.errors import LaunchError

_PR_SET_PDEATHSIG = 1
# Looked up before any fork: between fork and exec the child of a threaded process must not load anything.
_prctl = ctypes.CDLL(None).prctl


@dataclass(frozen=True)
class Descriptors:
    """File descriptors passed to a rank.

    Args:
        stdout, stderr: its outputs; None: those of the launcher.
        ready: pipe on which it reports that its interpreter has started (`hocket.boot.readiness`); None: no report.
        mpi: socket between its MPI library and the launcher (`hocket.boot.mpi_sockets`); None: no socket.
        recorder: memory for its recorder, which the launcher keeps, too (`recorder_memory`); None: it makes its own.
    """

    stdout: int | None = None
    stderr: int | None = None
    ready: int | None = None
    mpi: int | None = None
    recorder: int | None = None


class RankProcess:
    """A running rank in its own process group; `pidfd` becomes readable when it ends.

    `poll` reads the exit status without collecting it, so that the kernel does not reuse the pid, which is also the id
    of the process group, before `close`. `says_ready`: whether the rank reports that its interpreter has started, as
    every program of `runner_command` does.

    Args:
        rank: number of the rank.
        command: program and arguments.
        env: all environment variables of the rank.
        descriptors: its file descriptors.

    Raises:
        LaunchError: the program does not exist or is not executable, or no further process can be started.
    """

    def __init__(self, rank: int, command: list[str], env: Mapping[str, str], descriptors: Descriptors) -> None:
        self.rank = rank
        self.started_s = time.time()
        ready = descriptors.ready
        self.says_ready = ready is not None and command[: len(_RUNNER)] == _RUNNER
        if ready is not None:
            env = {**env, READY_FD: str(ready)}
        if descriptors.recorder is not None:
            env = {**env, "HOCKET_RECORDER_FD": str(descriptors.recorder)}
        try:
            self._process = subprocess.Popen(
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=descriptors.stdout,
                stderr=descriptors.stderr,
                pass_fds=[fd for fd in (ready, descriptors.mpi, descriptors.recorder) if fd is not None],
                # Its own session: Linux divides processor time between sessions (autogroups), and a rank would share
                # the part of one session with all processes started from the same terminal.
                start_new_session=True,
                preexec_fn=_DieWithLauncher(),
            )
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise LaunchError(f"rank {rank} could not be started: {command[0]}: {error}") from error
        self.pidfd = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number for a killed rank, or None while it runs."""
        status = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def signal_group(self, number: int) -> None:
        """Send a signal to the rank and to its child processes in the same group."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # the group is empty, or has only a process of another user

    def close(self) -> None:
        """Kill the rest of the process group and collect the exit status."""
        self.signal_group(signal.SIGKILL)
        self._process.wait()
        os.close(self.pidfd)


def recorder_memory() -> int | None:
    """Return a descriptor of new memory for a rank's recorder; None if there can be none, and the rank makes a file.

    The memory exists as long as one process has it: the launcher reads it when the rank hangs or was killed.
    HOCKET_RECORDER_FOLDER asks for files.
    """
    if os.environ.get("HOCKET_RECORDER_FOLDER"):
        return None
    try:
        return os.memfd_create("hocket-recorder", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return None


class _DieWithLauncher:
    """Runs in the child before exec: kill the child when the launcher dies, and unblock signals such as Ctrl-C."""

    def __init__(self) -> None:
        self._launcher = os.getpid()

    def __call__(self) -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._launcher:
            os._exit(1)  # the launcher died before the line above
        _be_as_nice()
        # Signals blocked by the caller would remain blocked after exec.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _be_as_nice() -> None:
    """Set the session's niceness to that of this process; a process's own counts only within it (see sched(7))."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    for _ in range(_NICE_TRIES if nice else 0):
        try:
            with open("/proc/self/autogroup", "w") as file:
                file.write(str(nice))
            return
        except BlockingIOError:  # the kernel accepts one change per user in a tenth of a second
            time.sleep(_NICE_AGAIN_S)
        except OSError:
            return


_NICE_TRIES, _NICE_AGAIN_S = 5, 0.12
_RUNNER = [sys.executable, "-m", "hocket.boot.runner"]


def runner_command(arguments: list[str]) -> list[str]:
    """Return the command that runs ``["script.py", *args]`` or ``["-m", "module", *args]`` as a rank in this Python."""
    return [*_RUNNER, *arguments]


def job_environment(
    num_ranks: int, report_folder: Path, nodes: Nodes, master_port: int, env: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables shared by all ranks of a new job on this host.

    Args:
        num_ranks: number of ranks on this host.
        report_folder: folder for the ranks' failure reports.
        nodes: all hosts of the job.
        master_port: port of torch's store on rank 0.
        env: variables to extend; by default those of this process.
    """
    base = os.environ if env is None else env
    # For a job inside a torchrun rank: torch would use the outer agent's store for this job.
    variables = without_mpi_variables({name: base[name] for name in base if not name.startswith("TORCHELASTIC_")})
    job = secrets.token_hex(16)
    variables |= {
        "WORLD_SIZE": str(num_ranks * nodes.num_nodes),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "GROUP_RANK": str(nodes.node_rank),
        "GROUP_WORLD_SIZE": str(nodes.num_nodes),
        "MASTER_ADDR": nodes.master_addr,
        "MASTER_PORT": str(master_port),
        # Equal on all launchers of the job. An earlier job at that port may still run: see `hocket.boot.joining`.
        "HOCKET_JOB": job if nodes.num_nodes == 1 else f"{nodes.master_addr}:{nodes.master_port}",
        "HOCKET_REPORT_DIR": str(report_folder),
    }
    cpus = len(os.sched_getaffinity(0))
    variables.setdefault("OMP_NUM_THREADS", str(max(1, cpus // num_ranks)))
    return variables


def rank_environment(rank: int, local_rank: int, shared: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of one rank: the shared ones and its own."""
    return {**shared, "RANK": str(rank), "LOCAL_RANK": str(local_rank)}
