"""Reports the libraries in the processes of a recorded run that the hooks do not match: without a report, a run without
events would look like a program without communication."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from time import monotonic

from hocket.errors import RecorderError
from hocket.observe.gloo import TORCH_LIBRARY, match_gloo
from hocket.observe.nccl import read_nccl
from hocket.observe.processes import descendants_of
from hocket.observe.run import hooks_library

_FIRST_LOOK_S = 0.5
_LONGEST_WAIT_S = 2.0
_MOST_MAPS_NBYTES = 16 << 20
_MOST_PROBLEMS = 64
_NCCL = re.compile(r"libnccl\.so\.2(\.\d+)*")


class HookWatch:
    """Looks at the libraries that the processes of a job have loaded, each file once.

    Args:
        pid: process whose descendants are the job; see `look` for further ones.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._hooks = hooks_library()
        self._next_s = monotonic() + _FIRST_LOOK_S
        self._wait_s = _FIRST_LOOK_S
        self._seen: set[str] = set()
        self._without_hooks: set[int] = set()
        self.problems: list[str] = []

    def look_if_due(self, recorded: Collection[int] = ()) -> None:
        """Look, unless the last time was a moment ago; see `look`."""
        now_s = monotonic()
        if now_s >= self._next_s:
            self.look(recorded)
            self._wait_s = min(self._wait_s * 1.5, _LONGEST_WAIT_S)
            self._next_s = monotonic() + self._wait_s

    def look(self, recorded: Collection[int] = ()) -> None:
        """Look at all processes.

        Args:
            recorded: processes with a recorder. They and their descendants belong to the job, too: other tasks that
                share the agent, and those that a scheduler's daemon has started.
        """
        for pid in descendants_of(self._pid, *recorded):
            loaded = _libraries_of(pid)
            torch = [path for path in loaded if path.name == TORCH_LIBRARY]
            nccl = [path for path in loaded if _NCCL.fullmatch(path.name)]
            if (torch or nccl) and not any(path.name == self._hooks.name for path in loaded):
                if pid not in self._without_hooks:
                    self._without_hooks.add(pid)
                    self._add(f"process {pid} has not loaded the hooks: it was started without LD_PRELOAD")
                continue
            for path in torch:
                self._check(pid, path, _gloo_problem)
            for path in nccl:
                self._check(pid, path, _nccl_problem)

    def _check(self, pid: int, path: Path, problem_of: Callable[[Path, Path], str | None]) -> None:
        opened = Path(f"/proc/{pid}/root{path}")  # the process may be in a container
        try:
            status = opened.stat()
            key = f"{status.st_dev}:{status.st_ino}"
            if key in self._seen:
                return
            problem = problem_of(path, opened)
        except (OSError, RecorderError) as error:
            key, problem = str(path), f"{path} cannot be compared with the hooks: {error}"
            if key in self._seen or path not in _libraries_of(pid):
                return  # the process has ended
        self._seen.add(key)
        if problem:
            self._add(problem)

    def _add(self, problem: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)


def _gloo_problem(path: Path, opened: Path) -> str | None:
    problem = match_gloo(path, opened).problem
    return f"operations over gloo are not recorded: {problem} ({path})" if problem else None


def _nccl_problem(path: Path, opened: Path) -> str | None:
    problem = read_nccl(path, opened).problem
    return f"operations of NCCL are not recorded: {problem}" if problem else None


def _libraries_of(pid: int) -> set[Path]:
    """Return the files that a process has mapped; none if it has ended or belongs to another user."""
    try:
        with Path(f"/proc/{pid}/maps").open("rb") as file:
            lines = file.read(_MOST_MAPS_NBYTES).decode(errors="replace").splitlines()
    except OSError:
        return set()
    fields = (line.split(maxsplit=5) for line in lines)
    return {Path(each[5]) for each in fields if len(each) == 6 and each[5].startswith("/") and ".so" in each[5]}
