"""Start a plain MPI program as one job under `hocket run`: the launcher serves PMI-1 to its ranks.

Each rank gets one end of a socket pair and three variables (PMI_FD, PMI_RANK, PMI_SIZE), as from MPICH's own launcher.
The launcher does nothing until a rank's MPI library sends a message. On several hosts the launchers connect to each
other for this (`hocket.boot.mpi_relay`); Open MPI gets another server (`hocket.boot.pmix_helper`). Child processes of a
rank are not ranks: `hocket.boot.mpi_variables` hides the variables from them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hocket.boot.job_result import EXIT_CANNOT_START, EXIT_TIMED_OUT, JobEnd
from hocket.boot.mpi_limits import Limits
from hocket.boot.mpi_variables import FAILED, mpi_variables
from hocket.boot.nodes import Nodes
from hocket.boot.open_mpi import REQUEST, REQUEST_AND_START
from hocket.boot.pmi import PmiError, PmiServer, remains_of, remove_remains
from hocket.boot.pmix_helper import PmixHelper
from hocket.boot.summary import name_ranks
from hocket.boot.watcher import Watcher

if TYPE_CHECKING:
    from hocket.boot.mpi_relay import MpiRelay

_CHUNK_BYTES = 1 << 16
_CHECK_S = 0.5  # interval of checks for messages from the threads of a relay


class _Wait(NamedTuple):
    """Some ranks wait in a call for others."""

    call: str
    inside: Sequence[int]
    missing: Sequence[int]
    since_s: float


class MpiSockets:
    """The launcher's ends of the sockets to its ranks' MPI libraries.

    Args:
        nodes: hosts of the job.
        num_local: number of ranks of this launcher.
        limits: time limits.
        remove_too: called with a pattern of files to remove if this process is killed.
    """

    def __init__(
        self, nodes: Nodes, num_local: int, limits: Limits, remove_too: Callable[[str], None] = lambda pattern: None
    ) -> None:
        self._size = nodes.num_nodes * num_local
        self._relay: MpiRelay | None = None
        if nodes.num_nodes > 1:
            from hocket.boot.mpi_relay import MpiRelay  # imported here: large, and rarely needed

            self._relay = MpiRelay(nodes, self._size, limits, remove_too)
        self._local_server = PmiServer(num_local) if self._relay is None else None
        self._limits = limits
        self._remove_too = remove_too
        self._exit_code: int | None = None
        self._sockets: dict[int, socket.socket] = {}
        self._ended: dict[int, float] = {}  # time of the end, by rank
        self._ended_well: set[int] = set()  # with exit code 0
        self._has_reported_spawn = False
        self._has_named = False  # whether a message has named the ranks missing in MPI_Init
        self._was_used = False
        self._failed: dict[int, int] = {}  # exit codes of ranks that reported a failure of their program
        self._with_open_mpi: set[int] = set()  # ranks in which it starts or has started
        self._open_mpi_s: float | None = None  # when the first did
        self._pmix: PmixHelper | None = None
        self._watcher: Watcher | None = None

    @property
    def _server(self) -> PmiServer | None:
        return self._local_server if self._relay is None else self._relay.server

    def watch(self, watcher: Watcher) -> None:
        """Serve the sockets by this watcher; called before the first rank starts."""
        self._watcher = watcher

    def open(self, rank: int) -> tuple[socket.socket, dict[str, str]]:
        """Create the socket of a rank that will be started.

        Returns:
            The rank's end, which the caller closes, and the variables that name it for the MPI library.

        Raises:
            OSError: the limit of descriptors is reached.
        """
        assert self._watcher is not None
        own_end, rank_end = socket.socketpair()
        own_end.setblocking(False)
        self._sockets[rank] = own_end
        self._watcher.watch(own_end.fileno(), lambda: self._take_in(rank))
        return rank_end, mpi_variables(rank_end.fileno(), rank, self._size)

    def note_end(self, rank: int, code: int) -> None:
        """Note that a rank has ended: it will not enter a barrier."""
        self._ended[rank] = time.monotonic()
        if code == 0:
            self._ended_well.add(rank)
        if self._relay is not None:
            self._relay.note_end(rank, code)

    def note_result(self, exit_code: int) -> None:
        """Note the exit code of this launcher's ranks, for the other launchers."""
        self._exit_code = exit_code

    def next_check_s(self) -> float | None:
        """Return the seconds until `check` is due; None: never."""
        if self._relay is not None:
            return _CHECK_S if self._relay.is_used else None
        server = self._local_server
        assert server is not None
        if self._aborted(server) is not None or self._must_report_spawn(server):
            return 0.0
        waits = [each for each in (self._start(server), self._end(server)) if each is not None]
        times = [self._ended[rank] + self._limits.grace_s for wait in waits for rank in self._ended_of(wait)]
        times += [self._ended[rank] + self._limits.grace_s for rank in self._without_finalize(server)]
        times += [
            wait.since_s + (self._limits.timeout_s if self._has_named else self._limits.named_after_s)
            for wait in waits
            if wait.call == "MPI_Init"
        ]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def take_failed(self) -> dict[int, int]:
        """Return the exit codes of ranks whose program has failed and whose MPI waits for others; each only once."""
        if self._relay is not None:
            return self._relay.take_failed()
        failed, self._failed = self._failed, {}
        return failed

    def check(self, report: Callable[[str], None]) -> JobEnd | None:
        """Check the time limits, and name ranks that others wait for in MPI_Init.

        Args:
            report: called with a message about a long wait.

        Returns:
            Why the job must end, or None.
        """
        end = None if self._relay is None else self._relay.check(report)
        server = self._server
        if end is not None or server is None:
            return end
        if (aborted := self._aborted(server)) is not None:
            return JobEnd.of_abort(*aborted)
        if self._must_report_spawn(server):
            self._has_reported_spawn = True
            report(
                f"rank {server.refused_spawn} called MPI_Comm_spawn, which hocket run does not support; "
                "for the pool of mpi4py.futures: hocket run -n 4 -m mpi4py.futures program.py"
            )
        for rank in server.ended:  # on other hosts
            self._ended.setdefault(rank, time.monotonic())
        for wait in (self._start(server), self._end(server)):
            if wait is not None and (end := self._check_wait(wait, report)) is not None:
                return end
        now = time.monotonic()
        gone = [rank for rank in self._without_finalize(server) if now >= self._ended[rank] + self._limits.grace_s]
        if gone and self._relay is None:
            return JobEnd(f"{name_ranks(gone)} ended without MPI_Finalize; other ranks may wait", EXIT_CANNOT_START)
        return None

    def _check_wait(self, wait: _Wait, report: Callable[[str], None]) -> JobEnd | None:
        now = time.monotonic()
        inside, waited_s = name_ranks(wait.inside), now - wait.since_s
        gone = [rank for rank in self._ended_of(wait) if now >= self._ended[rank] + self._limits.grace_s]
        if gone:
            return JobEnd(f"{name_ranks(gone)} ended without {wait.call}, but {inside} waited there", EXIT_CANNOT_START)
        if wait.call != "MPI_Init":
            return None  # some ranks may still compute before MPI_Finalize
        text = f"{inside} waited {waited_s:.0f} s in MPI_Init for {name_ranks(wait.missing)}"
        if waited_s >= self._limits.timeout_s:
            return JobEnd(text, EXIT_TIMED_OUT)
        if not self._has_named and waited_s >= self._limits.named_after_s:
            self._has_named = True
            report(f"{text}; the job ends after {self._limits.timeout_s:.0f} s")
        return None

    def _must_report_spawn(self, server: PmiServer) -> bool:
        return server.refused_spawn is not None and not self._has_reported_spawn

    def _without_finalize(self, server: PmiServer) -> list[int]:
        """Return the ranks that exited with 0 without MPI_Finalize: others may wait for them for ever."""
        if self._limits.keep_going:
            return []
        inside = server.begun if self._pmix is None else self._pmix.inside
        return sorted(self._ended_well & inside - server.finalized)

    def _aborted(self, server: PmiServer) -> tuple[int, int] | None:
        return server.aborted or (None if self._pmix is None else self._pmix.aborted)

    def _ended_of(self, wait: _Wait) -> list[int]:
        return [rank for rank in wait.missing if rank in self._ended]

    def _start(self, server: PmiServer) -> _Wait | None:
        """Return the wait in MPI_Init: for ranks that have not called it, or have not entered its barrier."""
        if self._open_mpi_s is not None:
            missing = [rank for rank in range(self._size) if rank not in self._with_open_mpi]
            return _Wait("MPI_Init", sorted(self._with_open_mpi), missing, self._open_mpi_s) if missing else None
        if server.begun_s is None or server.has_started:
            return None
        ranks = range(self._size)
        unbegun = [rank for rank in ranks if rank not in server.begun]
        if unbegun:
            return _Wait("MPI_Init", sorted(server.begun), unbegun, server.begun_s)
        inside = server.ranks_in_barrier
        missing = [rank for rank in ranks if rank not in inside]
        return _Wait("MPI_Init", inside, missing, server.begun_s) if inside else None

    def _end(self, server: PmiServer) -> _Wait | None:
        """Return the wait in MPI_Finalize, as far as the ranks' MPI library reports it."""
        inside = server.ranks_in_barrier
        if not server.has_started or not inside:
            return None
        missing = [rank for rank in range(self._size) if rank not in inside]
        return _Wait("MPI_Finalize", inside, missing, 0.0)

    def close(self) -> None:
        """Close the sockets, and remove shared memory left by ranks that were killed during MPI_Init."""
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()
        if self._pmix is not None:
            self._pmix.close()
        if self._relay is not None:
            self._relay.close(self._exit_code)
        elif self._local_server is not None and self._was_used:
            remove_remains(self._local_server.name)

    def _take_in(self, rank: int) -> None:
        """Handle a message of a rank's MPI library; never wait for a library that does not read the answer."""
        try:
            if self._relay is not None:
                if not self._sockets[rank].recv(1, socket.MSG_PEEK):
                    raise ConnectionError("the rank has ended or closed its socket")
                local = self._sockets.pop(rank)
                self._unwatch(local)
                self._relay.carry(rank, local)
                return
            assert self._local_server is not None
            data = self._sockets[rank].recv(_CHUNK_BYTES)
            if not data:
                raise ConnectionError("the rank has ended or closed its socket")
            if not self._was_used:
                self._was_used = True
                self._remove_too(remains_of(self._local_server.name))
            if data in (REQUEST, REQUEST_AND_START):
                self._start_pmix(rank, starts=data == REQUEST_AND_START)
                return
            if (failed := FAILED.search(data)) is not None:
                self._failed[rank] = int(failed[1])
                data = FAILED.sub(b"", data)
            for receiver, answer in self._local_server.take_in(rank, data):
                self._send(receiver, answer)
        except (OSError, PmiError):
            self._close(rank)

    def _send(self, rank: int, answer: bytes) -> None:
        if rank not in self._sockets:
            return
        try:
            is_sent = self._sockets[rank].send(answer) == len(answer)
        except OSError:
            is_sent = False
        if not is_sent:
            self._close(rank)

    def _start_pmix(self, rank: int, *, starts: bool) -> None:
        """Start the PMIx server if it is not running, and send its variables to a rank."""
        assert self._watcher is not None
        if starts:
            self._with_open_mpi.add(rank)
            self._open_mpi_s = self._open_mpi_s or time.monotonic()
        if self._pmix is None:
            self._pmix = PmixHelper(self._size, self._watcher, self._send)
        self._pmix.send_variables(rank)

    def _close(self, rank: int) -> None:
        if rank not in self._sockets:
            return
        closed = self._sockets.pop(rank)
        self._unwatch(closed)
        closed.close()
        if self._local_server is not None:
            self._local_server.leave(rank)

    def _unwatch(self, each: socket.socket) -> None:
        assert self._watcher is not None
        self._watcher.unwatch(each.fileno())
