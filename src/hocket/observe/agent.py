"""Collects what the processes of a job record while they run; one agent on each host."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import time

from hocket.errors import InvalidArgument, RecorderError
from hocket.observe.drain import FILE_PREFIX, Drain, name_of
from hocket.observe.run import LAYERS, memory_folder, recording_environment
from hocket.observe.sampler import RunSampler
from hocket.observe.saved import RunDescription, empty_folder, save_run
from hocket.trace import read_recorder

FOLDER_PREFIX = "hocket-observe-"
"""Of the folders in memory in which the processes of recorded runs leave their recorders."""
_FILES = FILE_PREFIX + "*"
_LONGEST_WAIT_S = 0.25
_SHORTEST_WAIT_S = 0.01
_FULL_SHARE = 0.25
"""Where more of a ring was written since the last look, the next look comes in half the time."""
_DEADLINE_S = 60.0
"""For the agent's last look, at rings that nobody writes any more."""


@dataclass(frozen=True)
class RunRecording:
    """What is left of a recorded run.

    Args:
        folder: the run, for `open_run`.
        exit_code: of the command; negative: minus the number of the signal that ended it.
        num_processes: how many processes have left a recorder.
        num_events: how many events were saved.
        num_lost: how many events were overwritten before they could be saved; totals have them.
        problems: what could not be read.

    Examples:
        >>> from hocket import observe
        >>> observe.record_run(["true"], "run").exit_code
        0
    """

    folder: Path
    exit_code: int
    num_processes: int
    num_events: int
    num_lost: int
    problems: tuple[str, ...]


def record_run(
    command: Sequence[str], folder: str | Path, *, layers: Collection[str] = LAYERS, interval_s: float = 1.0,
    environment: Mapping[str, str] | None = None,
) -> RunRecording:  # fmt: skip
    """Run a command and record it and all programs that it starts on this host; they need not import hocket.

    Args:
        command: program and arguments, such as ``["torchrun", "--nproc-per-node", "2", "train.py"]``.
        folder: where to save the run; a new or an empty folder.
        layers: what to record of programs that do not import hocket: "comm", "io" or both.
        interval_s: seconds between two samples of the processes and of this host, such as their CPU and memory; at
            least 0.01. With many processes they are rarer, so that sampling takes at most 2 % of a CPU.
        environment: of the command; None: that of this process.

    Raises:
        InvalidArgument: `folder` is not empty, a layer is unknown, the interval is too short, or the command cannot be
            started.
        RecorderError: nothing can be recorded here.

    Examples:
        >>> from hocket import observe
        >>> observe.record_run(["cat", "/etc/hostname"], "run-of-cat").exit_code
        0
    """
    if not command:
        raise InvalidArgument("a command is needed, such as python train.py")
    target = empty_folder(Path(folder))
    sampler = RunSampler(target, interval_s)
    with _claimed(target):
        return _record(command, target, sampler, layers, os.environ if environment is None else environment)


def _record(
    command: Sequence[str], target: Path, sampler: RunSampler, layers: Collection[str], environment: Mapping[str, str]
) -> RunRecording:
    memory = Path(mkdtemp(prefix=FOLDER_PREFIX, dir=memory_folder()))
    try:
        variables = recording_environment(environment, memory, layers)
        began_s = time()
        try:
            process = subprocess.Popen(list(command), env=variables)
        except OSError as error:
            raise InvalidArgument(f"{command[0]} cannot be started: {error.strerror}") from None
        agent = Agent(memory, target, sampler)
        agent.start()
        try:
            exit_code = _wait(process)
        finally:
            agent.stop()
        lost = {drain.name: drain.lost for drain in agent.drains if drain.lost}
        host, ended_s = socket.gethostname(), time()
        queued = sampler.queued_jobs()
        save_run(target, RunDescription(tuple(command), host, began_s, ended_s, exit_code, lost, sampler.tasks, queued))
        return RunRecording(
            folder=target,
            exit_code=exit_code,
            num_processes=len(agent.drains),
            num_events=sum(drain.num_saved for drain in agent.drains),
            num_lost=sum(sum(drain.lost.values()) for drain in agent.drains),
            problems=tuple(agent.problems),
        )
    finally:
        rmtree(memory, ignore_errors=True)


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Keep other processes from recording into a folder: tasks of `srun` start at the same time."""
    claim = folder / "recording"
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        raise InvalidArgument(f"another process records into {folder}: name a folder for each") from None
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be used: {error.strerror}") from None
    try:
        yield
    finally:
        claim.unlink(missing_ok=True)


class Agent:
    """Saves the events of all recorders in a folder, in a thread.

    Args:
        memory: folder in which processes leave their recorders.
        target: folder to save them in.
        sampler: samples the processes.
    """

    def __init__(self, memory: Path, target: Path, sampler: RunSampler) -> None:
        self._memory = memory
        self._target = target
        self._sampler = sampler
        self._drains: dict[str, Drain] = {}
        self._unreadable: dict[Path, str] = {}
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hocket-agent", daemon=True)
        self._error: BaseException | None = None

    @property
    def drains(self) -> list[Drain]:
        """One for each process."""
        return list(self._drains.values())

    @property
    def problems(self) -> list[str]:
        """What could not be read."""
        of_drains = (problem for drain in self.drains for problem in drain.problems)
        return [*self._unreadable.values(), *of_drains, *sorted(self._sampler.problems)]

    def start(self) -> None:
        """Begin to look at the recorders."""
        self._thread.start()

    def stop(self) -> None:
        """Look once more, and end.

        Raises:
            RecorderError: the events could not be saved, for example because the disk is full.
        """
        self._stops.set()
        self._thread.join(_DEADLINE_S)
        if self._thread.is_alive():
            raise RecorderError(f"the events were not saved within {_DEADLINE_S:.0f} s")
        if self._error:
            raise RecorderError(f"the events could not be saved: {self._error}") from self._error

    def _run(self) -> None:
        wait_s = longest_wait_s = min(_LONGEST_WAIT_S, self._sampler.interval_s)
        try:
            while not self._stops.wait(wait_s):
                share = self._look()
                wait_s = min(wait_s * (0.5 if share > _FULL_SHARE else 1.5), longest_wait_s)
                wait_s = max(wait_s, _SHORTEST_WAIT_S)
            self._look()
            self._sampler.sample_host()
            for drain in self.drains:
                drain.finish()
                self._sampler.see(drain)
        except BaseException as error:
            self._error = error

    def _look(self) -> float:
        """Look at every recorder; return the largest share of a ring that was new."""
        largest = 0.0
        self._sampler.sample_if_due()
        self._unreadable.clear()  # one that is being made is readable at the next look
        for path in sorted(self._memory.glob(_FILES)):
            try:
                head = read_recorder(path, 0)
            except RecorderError as error:
                self._unreadable[path] = str(error)
                continue
            name = name_of(path, head.owner)
            drain = self._drains.setdefault(name, Drain(name, path, self._target))
            drain.path = path
            largest = max(largest, drain.look(head))
            self._sampler.see(drain)
        return largest


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the command; Ctrl-C goes to it from the terminal, and it decides when to end."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
