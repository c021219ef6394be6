"""Ranks that live across tests: `hocket.spawn` costs a new communicator, not new processes."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from hocket.boot.job_result import JobResult, RankOutcome
from hocket.boot.rank_process import runner_command
from hocket.boot.supervisor import Patience

from ..load import scaled
from .client import ForkServer, is_likely_to_import_torch
from .requests import RankTask, TaskEnd

_SPAWNED = runner_command(["-m", "hocket.session.spawned"])
_LIVING = runner_command(["-m", "tests.prefork.living_rank"])
_START_DEADLINE_S = 60.0
_END_DEADLINE_S = 60.0  # for the others of a rank that failed
_MOST_RANKS = 24  # of all sets; those that were not used for longest end
_VOLATILE = ("PYTEST_CURRENT_TEST", "HOCKET_RECORD_DIR", "COLUMNS", "LINES")


@dataclass(frozen=True)
class _Kind:
    """What ranks must have in common with those that a task would get by itself."""

    num_ranks: int
    is_heavy: bool
    has_torch: bool
    variables: tuple[tuple[str, str], ...]


class RankPool:
    """Sets of living ranks, by their number, variables, and whether they find torch imported, and have imported it.

    `bad_ends` has a line for each set that did not end with exit code 0.
    """

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._sets: OrderedDict[_Kind, _RankSet] = OrderedDict()
        self._imports_torch: dict[str, bool] = {}
        self.num_tasks = 0
        self._given_up: Counter[str] = Counter()
        self.bad_ends: list[str] = []

    def run_job(self, command: list[str], num_ranks: int, *, patience: Patience, **options: Any) -> JobResult:
        """Take the place of `hocket.boot.launcher.run_job`; what is no task of `hocket.spawn` goes to the server."""
        if command[:-1] != _SPAWNED or not self._server.may_fork(os.environ):
            return self._server.run_job(command, num_ranks, patience=patience, **options)
        variables = {name: value for name, value in os.environ.items() if name not in _VOLATILE}
        file = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
        has_torch = self._imports_torch.get(file, False)
        is_heavy = has_torch or is_likely_to_import_torch(command, Path.cwd())
        kind = _Kind(num_ranks, is_heavy, has_torch, tuple(sorted(variables.items())))
        ranks = self._sets.pop(kind, None) or _RankSet(self._server, num_ranks, variables, is_heavy)
        ranks.files.add(file)
        try:
            result, has_torch = ranks.run(command[-1], patience)
        except BaseException:  # a deadline of pytest's, Ctrl-C: the task would run on
            ranks.kill()
            raise
        if ranks.remains:
            self._close(ranks)
        self.num_tasks += 1
        if not ranks.is_alive:
            self._given_up[ranks.remains] += 1
            return result
        self._imports_torch[file] = has_torch
        kind = _Kind(num_ranks, is_heavy, has_torch, kind.variables)
        if kind in self._sets or (has_torch and not is_heavy):  # the latter are asked for no more: heavy ones will be
            self._close(ranks)
        else:
            self._sets[kind] = ranks
            self._make_room()
        return result

    def summary(self) -> str:
        """Return how many tasks were run, and why sets were not used again, in a line."""
        causes = ", ".join(f"{cause or 'failed'}: {count}" for cause, count in self._given_up.most_common())
        return f"{self.num_tasks} tasks on ranks that live on; sets given up: {causes or 'none'}"

    def close(self) -> None:
        """End all ranks."""
        while self._sets:
            self._close(self._sets.popitem()[1])

    def _close(self, ranks: _RankSet) -> None:
        """Let ranks end, and note an exit code other than 0: the test that caused it has already passed."""
        code = ranks.close()
        if code:
            self.bad_ends.append(
                f"living ranks exited with code {code} after running tasks of {', '.join(sorted(ranks.files))}"
            )

    def _make_room(self) -> None:
        while sum(kind.num_ranks for kind in self._sets) > _MOST_RANKS and len(self._sets) > 1:
            self._close(self._sets.popitem(last=False)[1])


class _RankSet:
    def __init__(self, server: ForkServer, num_ranks: int, variables: Mapping[str, str], is_heavy: bool) -> None:
        self.is_alive = True
        self.remains = ""
        self.files: set[str] = set()
        self._server = server
        self._counted_s = 0.0
        with tempfile.TemporaryDirectory(prefix="hocket-ranks-") as folder, socket.socket(socket.AF_UNIX) as listener:
            address = str(Path(folder) / "socket")
            listener.bind(address)
            listener.listen(num_ranks)
            listener.settimeout(scaled(_START_DEADLINE_S))
            self._job = server.start_job([*_LIVING, address], num_ranks, variables, is_heavy)
            self._ranks: dict[int, Connection] = {}
            try:
                while len(self._ranks) < num_ranks:
                    rank = Connection(listener.accept()[0].detach())
                    self._ranks[rank.recv()] = rank
            except BaseException:
                self.kill()
                raise

    def run(self, folder: str, patience: Patience) -> tuple[JobResult, bool]:
        """Run the task that lies in `folder`; return how it ended, and whether the ranks have torch now."""
        sys.stdout.flush()
        sys.stderr.flush()
        started_s, started_at = time.time(), time.monotonic()
        deadline = None if patience.timeout_s is None else started_at + patience.timeout_s
        task = RankTask(folder, os.getcwd(), os.environ.get("HOCKET_RECORD_DIR", "hocket-records"))
        for rank in self._ranks.values():
            with socket.socket(fileno=os.dup(rank.fileno())) as own:
                socket.send_fds(own, [b"t"], [1, 2])
            rank.send(task)
        ends: list[TaskEnd] = []
        busy = set(self._ranks.values())
        while busy:
            ready = wait(busy, None if deadline is None else max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                outcomes = self._outcomes(started_s, -signal.SIGKILL)
                return JobResult(outcomes, {}, time.monotonic() - started_at, task.record_dir, timed_out=True), False
            for rank in ready:
                assert isinstance(rank, Connection)
                busy.remove(rank)
                try:
                    ends.append(rank.recv())
                except (EOFError, ConnectionResetError):
                    return self._result_of_failure(deadline, started_s), False
        for end in ends:
            self._server.cpu_s += end.cpu_s
            self._counted_s += end.cpu_s
        result = JobResult(self._outcomes(started_s, 0), {}, time.monotonic() - started_at, task.record_dir)
        remains = {end.remains for end in ends if end.remains}
        if remains or len({end.has_torch for end in ends}) > 1:
            self.remains = ", ".join(sorted(remains)) or "torch on some ranks"
        return result, ends[0].has_torch

    def close(self) -> int:
        """Let the ranks end, as they do when there is no further task; return the exit code of their job."""
        self._give_no_more()
        if self._job.connection.poll(scaled(_END_DEADLINE_S)):
            return self._receive().exit_code
        self.kill()
        return 128 + signal.SIGKILL

    def _outcomes(self, started_s: float, code: int) -> tuple[RankOutcome, ...]:
        return tuple(RankOutcome(rank, code, started_s, time.time()) for rank in sorted(self._ranks))

    def _result_of_failure(self, deadline: float | None, started_s: float) -> JobResult:
        """Let those that are done end, so that the launcher has but to deal with those that are not."""
        self._give_no_more()
        patience_s = scaled(_END_DEADLINE_S)
        left_s = patience_s if deadline is None else deadline + patience_s - time.monotonic()
        if not self._job.connection.poll(left_s):
            self.kill()
            raise TimeoutError(f"after a rank failed the others did not end within {left_s:.0f} s")
        return self._receive()

    def _give_no_more(self) -> None:
        for rank in self._ranks.values():
            with socket.socket(fileno=os.dup(rank.fileno())) as own:
                own.shutdown(socket.SHUT_WR)

    def _receive(self) -> JobResult:
        self.is_alive = False
        for rank in self._ranks.values():
            rank.close()
        self._server.cpu_s -= self._counted_s
        return self._job.result()

    def kill(self) -> None:
        """End the ranks at once."""
        self.is_alive = False
        self._server.cpu_s -= self._counted_s
        self._job.kill()
        for rank in self._ranks.values():
            rank.close()
