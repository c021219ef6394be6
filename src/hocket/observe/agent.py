"""Saves what the processes of a job record while they run; one agent on each host."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import monotonic, time

from hocket.errors import RecorderError
from hocket.observe.drain import Drain
from hocket.observe.hook_watch import HookWatch
from hocket.observe.one_agent import AGENT_LOCK, locked, remove_abandoned_locks
from hocket.observe.run import is_in_memory, memory_folder
from hocket.observe.run_clock import AnchorSeries
from hocket.observe.sampler import RunSampler
from hocket.observe.saved import RECORDER_FILES, RunDescription, is_followed, name_of, save_progress
from hocket.trace import RecorderPlace, read_recorder

FOLDER_PREFIX = "hocket-observe-"
"""Of the folders in memory in which the processes of recorded runs leave their recorders."""
_BEGINNING_S = 10.0
_FILES = RECORDER_FILES + "*"
_LONGEST_WAIT_S = 0.25
_SHORTEST_WAIT_S = 0.01
_FOLLOWED_WAIT_S = 0.04
"""While a page follows the run."""
_DESCRIBED_S = 1.0
_FULL_SHARE = 0.25
"""Where more of a ring was written since the last look, the next look comes in half the time."""
_DEADLINE_S = 60.0
"""For the agent's last look, at rings that nobody writes any more."""


@contextmanager
def agent_of(target: Path, interval_s: float) -> Iterator[Agent]:
    """Make an agent with a folder in memory, which ends with the context."""
    sampler = RunSampler(target, interval_s)
    folder = memory_folder()
    remove_abandoned(folder)
    memory = Path(mkdtemp(prefix=FOLDER_PREFIX, dir=folder))
    try:
        with locked(memory / AGENT_LOCK):
            yield Agent(memory, target, sampler)
    finally:
        sampler.close()
        rmtree(memory, ignore_errors=True)


def remove_abandoned(folder: Path) -> None:
    """Remove what agents of this user that were killed have left in memory."""
    remove_abandoned_locks(folder)
    for each in folder.glob(FOLDER_PREFIX + "*"):
        try:
            if time() - each.stat().st_mtime < _BEGINNING_S:
                continue  # its agent may not have the lock yet
            with locked(each / AGENT_LOCK):
                rmtree(each, ignore_errors=True)
        except (OSError, RecorderError):
            continue  # its agent runs, or it belongs to another user


class Agent:
    """Saves the events of all recorders in a folder, in a thread.

    Args:
        memory: folder in which processes leave their recorders.
        target: folder to save them in.
        sampler: samples the processes.
    """

    def __init__(self, memory: Path, target: Path, sampler: RunSampler) -> None:
        self.memory = memory
        self.target = target
        self.sampler = sampler
        self.anchors = AnchorSeries()
        self.watch: HookWatch | None = None
        """Looks at the libraries of the processes, if set before the start."""
        self.describe: Callable[[], RunDescription] | None = None
        """Says what is known of the run, for those who follow it, if set before the start."""
        self._described_s = -math.inf
        self._drains: dict[str, Drain] = {}
        self._unreadable: dict[Path, str] = {}
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hocket-agent", daemon=True)
        self._error: BaseException | None = None

    def places(self) -> list[RecorderPlace]:
        """Return the recorders that processes have now."""
        return [RecorderPlace(path, os.getpid()) for path in sorted(self.memory.glob(_FILES))]

    @property
    def drains(self) -> list[Drain]:
        """One for each process."""
        return list(self._drains.values())

    @property
    def problems(self) -> list[str]:
        """What could not be read, and which libraries the hooks do not match."""
        of_watch = self.watch.problems if self.watch else []
        of_drains = (problem for drain in self.drains for problem in drain.problems)
        unsaved = [f"not all events could be saved in {self.target}: {self._error}"] if self._error else []
        slow = (
            []
            if is_in_memory(self.memory)
            else [f"{self.memory.parent} is on a disk: recording slowed the program down"]
        )
        return [*unsaved, *slow, *of_watch, *self._unreadable.values(), *of_drains, *sorted(self.sampler.problems)]

    def start(self) -> None:
        """Begin to look at the recorders."""
        self._thread.start()

    def stop(self) -> None:
        """Look once more, and end; `problems` says what could not be saved, for example because the disk is full."""
        self._stops.set()
        self._thread.join(_DEADLINE_S)
        if self._thread.is_alive():
            self._error = TimeoutError(f"not within {_DEADLINE_S:.0f} s")

    def _run(self) -> None:
        wait_s = longest_wait_s = min(_LONGEST_WAIT_S, self.sampler.interval_s)
        try:
            self.sampler.sample_host()  # what is counted from here on is of the run
            while not self._stops.wait(wait_s):
                share = self._look()
                self.anchors.take()
                self._describe()
                longest_s = min(longest_wait_s, _FOLLOWED_WAIT_S) if is_followed(self.target) else longest_wait_s
                wait_s = min(wait_s * (0.5 if share > _FULL_SHARE else 1.5), longest_s)
                wait_s = max(wait_s, _SHORTEST_WAIT_S)
            self._look()
            self.anchors.take(at_once=True)
            self.sampler.sample_host()
            for drain in self.drains:
                drain.finish()
                self.sampler.see(drain)
            self.sampler.save()
        except BaseException as error:
            self._error = error

    def _describe(self) -> None:
        """Keep what is known of the run beside what was saved, for those who follow it."""
        if self.describe is None or monotonic() - self._described_s < _DESCRIBED_S:
            return
        self._described_s = monotonic()
        self.anchors.take(at_once=len(self.anchors.anchors) < 2)
        save_progress(self.target, self.describe(), self.memory)

    def _look(self) -> float:
        """Look at every recorder; return the largest share of a ring that was new."""
        if self.watch:
            self.watch.look_if_due([drain.pid for drain in self.drains if drain.pid is not None])
        largest = 0.0
        self.sampler.sample_if_due()
        self._unreadable.clear()  # one that is being made is readable at the next look
        for path in sorted(self.memory.glob(_FILES)):
            try:
                head = read_recorder(path, 0)
            except RecorderError as error:
                self._unreadable[path] = str(error)
                continue
            name = name_of(path, head.owner)
            drain = self._drains.setdefault(name, Drain(name, path, self.target))
            drain.path = path
            largest = max(largest, drain.look(head))
            self.sampler.see(drain)
        return largest
