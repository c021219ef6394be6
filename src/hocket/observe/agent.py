"""Collects what the processes of a job record while they run; one agent on each host."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import time

from hocket.errors import InvalidArgument, RecorderError
from hocket.observe.drain import Drain
from hocket.observe.hook_watch import HookWatch
from hocket.observe.nccl import plugin_problem
from hocket.observe.run import LAYERS, memory_folder, recording_environment
from hocket.observe.saved import RunDescription, empty_folder, save_run

FOLDER_PREFIX = "hocket-observe-"
"""Of the folders in memory in which the processes of recorded runs leave their recorders."""
_FILES = "hocket-recorder-*"
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
        problems: what could not be read, and which libraries the hooks do not match.

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
    command: Sequence[str], folder: str | Path, *, layers: Collection[str] = LAYERS,
    environment: Mapping[str, str] | None = None,
) -> RunRecording:  # fmt: skip
    """Run a command and record it and all programs that it starts on this host; they need not import hocket.

    Args:
        command: program and arguments, such as ``["torchrun", "--nproc-per-node", "2", "train.py"]``.
        folder: where to save the run; a new or an empty folder.
        layers: what to record of programs that do not import hocket: "comm", "io" or both.
        environment: of the command; None: that of this process.

    Raises:
        InvalidArgument: `folder` is not empty, a layer is unknown, or the command cannot be started.
        RecorderError: nothing can be recorded here.

    Examples:
        >>> from hocket import observe
        >>> observe.record_run(["cat", "/etc/hostname"], "run-of-cat").exit_code
        0
    """
    if not command:
        raise InvalidArgument("a command is needed, such as python train.py")
    target = empty_folder(Path(folder))
    memory = Path(mkdtemp(prefix=FOLDER_PREFIX, dir=memory_folder()))
    try:
        variables = recording_environment(os.environ if environment is None else environment, memory, layers)
        plugin = plugin_problem(variables) if "comm" in layers else None
        problems = [plugin] if plugin else []
        began_s = time()
        try:
            process = subprocess.Popen(list(command), env=variables)
        except OSError as error:
            raise InvalidArgument(f"{command[0]} cannot be started: {error.strerror}") from None
        watch = HookWatch(process.pid) if "comm" in layers else None
        agent = Agent(memory, target, watch)
        agent.start()
        try:
            exit_code = _wait(process)
        finally:
            agent.stop()
        lost = {drain.name: drain.lost for drain in agent.drains if drain.lost}
        save_run(target, RunDescription(tuple(command), socket.gethostname(), began_s, time(), exit_code, lost))
        return RunRecording(
            folder=target,
            exit_code=exit_code,
            num_processes=len(agent.drains),
            num_events=sum(drain.num_saved for drain in agent.drains),
            num_lost=sum(sum(drain.lost.values()) for drain in agent.drains),
            problems=(*problems, *agent.problems),
        )
    finally:
        rmtree(memory, ignore_errors=True)


class Agent:
    """Saves the events of all recorders in a folder, in a thread.

    Args:
        memory: folder in which processes leave their recorders.
        target: folder to save them in.
        watch: looks at the libraries of the processes; None: nobody does.
    """

    def __init__(self, memory: Path, target: Path, watch: HookWatch | None = None) -> None:
        self._memory = memory
        self._target = target
        self._watch = watch
        self._drains: dict[str, Drain] = {}
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hocket-agent", daemon=True)
        self._error: BaseException | None = None

    @property
    def drains(self) -> list[Drain]:
        """One for each process."""
        return list(self._drains.values())

    @property
    def problems(self) -> list[str]:
        """What could not be read, and which libraries the hooks do not match."""
        of_watch = self._watch.problems if self._watch else []
        return [*of_watch, *(problem for drain in self.drains for problem in drain.problems)]

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
        wait_s = _LONGEST_WAIT_S
        try:
            while not self._stops.wait(wait_s):
                share = self._look()
                wait_s = min(wait_s * (0.5 if share > _FULL_SHARE else 1.5), _LONGEST_WAIT_S)
                wait_s = max(wait_s, _SHORTEST_WAIT_S)
            self._look()
            for drain in self.drains:
                drain.finish()
        except BaseException as error:
            self._error = error

    def _look(self) -> float:
        """Look at every recorder; return the largest share of a ring that was new."""
        if self._watch:
            self._watch.look_if_due()
        largest = 0.0
        for path in sorted(self._memory.glob(_FILES)):
            drain = self._drains.get(path.name)
            if drain is None:
                drain = self._drains[path.name] = Drain(path, self._target)
            largest = max(largest, drain.look())
        return largest


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the command; Ctrl-C goes to it from the terminal, and it decides when to end."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
