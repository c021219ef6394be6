"""What makes a plain MPI program one job under `hocket run`: the launcher serves PMI-1 to the ranks that it starts.

Each rank gets one end of a socket pair and three variables (PMI_FD, PMI_RANK, PMI_SIZE), as from MPICH's own launcher;
until its MPI library speaks, nothing is done. On several hosts the launchers join for it (`hocket.boot.mpi_relay`), and
Open MPI gets another server (`hocket.boot.pmix_helper`). Programs that a rank starts are no ranks:
`hocket.boot.mpi_variables` keeps the variables from them.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable

from hocket.boot.job_result import EXIT_CANNOT_START, EXIT_TIMED_OUT, JobEnd
from hocket.boot.mpi_relay import LOOK_S, MpiRelay
from hocket.boot.mpi_variables import mpi_variables
from hocket.boot.nodes import Nodes
from hocket.boot.open_mpi import REQUEST
from hocket.boot.pmi import PmiError, PmiServer, remove_remains
from hocket.boot.pmix_helper import PmixHelper
from hocket.boot.summary import name_ranks
from hocket.boot.watcher import Watcher

_CHUNK_BYTES = 1 << 16


class MpiSockets:
    """The launcher's ends of the sockets by which its ranks start MPI.

    Args:
        nodes: hosts of the job.
        num_local: ranks of this launcher.
        grace_s: seconds from the end of a rank that others wait for in MPI_Init to the end of the job.
        timeout_s: seconds that ranks may wait for others in MPI_Init.
        named_after_s: seconds after which those are named.
    """

    def __init__(self, nodes: Nodes, num_local: int, grace_s: float, timeout_s: float, named_after_s: float) -> None:
        self._size = nodes.num_nodes * num_local
        self._relay = MpiRelay(nodes, self._size, timeout_s, named_after_s) if nodes.num_nodes > 1 else None
        self._local_server = PmiServer(num_local) if self._relay is None else None
        self._grace_s = grace_s
        self._timeout_s = timeout_s
        self._named_after_s = named_after_s
        self._sockets: dict[int, socket.socket] = {}
        self._ended: dict[int, float] = {}  # rank: when
        self._has_named = False  # the ranks that others wait for in MPI_Init
        self._was_used = False
        self._pmix: PmixHelper | None = None
        self._watcher: Watcher | None = None

    @property
    def _server(self) -> PmiServer | None:
        return self._local_server if self._relay is None else self._relay.server

    def watch(self, watcher: Watcher) -> None:
        """Serve whenever the watcher reacts; before the first rank is started."""
        self._watcher = watcher

    def open(self, rank: int) -> tuple[socket.socket, dict[str, str]]:
        """Make the socket of a rank that is about to start.

        Returns:
            The rank's end, which the caller closes, and the variables that tell its MPI library of it.

        Raises:
            OSError: there are too many descriptors.
        """
        assert self._watcher is not None
        mine, ranks = socket.socketpair()
        mine.setblocking(False)
        self._sockets[rank] = mine
        self._watcher.watch(mine.fileno(), lambda: self._take_in(rank))
        return ranks, mpi_variables(ranks.fileno(), rank, self._size)

    def note_end(self, rank: int) -> None:
        """Note that a rank has ended: it does not come to a barrier any more."""
        self._ended[rank] = time.monotonic()

    def next_look_s(self) -> float | None:
        """Return in how many seconds `look_at_clock` has something to do; None: never."""
        if self._relay is not None:
            return LOOK_S if self._relay.is_used else None
        server = self._local_server
        if server is None or server.begun_s is None:
            return None
        if server.aborted is not None:
            return 0.0
        missing = self._missing(server) if server.ranks_in_barrier else self._unbegun(server)
        times = [self._ended[rank] + self._grace_s for rank in missing if rank in self._ended]
        if self._unbegun(server):
            times.append(server.begun_s + (self._timeout_s if self._has_named else self._named_after_s))
        return max(0.0, min(times) - time.monotonic()) if times else None

    def look_at_clock(self, say: Callable[[str], None]) -> JobEnd | None:
        """Name who is waited for in MPI_Init.

        Args:
            say: called with a line about a wait that has become long.

        Returns:
            Why the job has to end, if it has to.
        """
        end = None if self._relay is None else self._relay.look(say)
        server = self._server
        if end is not None or server is None:
            return end
        if server.aborted is not None:
            return JobEnd.of_abort(*server.aborted)
        if server.begun_s is None:
            return None
        now, unbegun = time.monotonic(), self._unbegun(server)
        if unbegun:
            return self._look_at_start(name_ranks(sorted(server.begun)), unbegun, now - server.begun_s, say)
        # MPI_Finalize waits for all ranks, too. Some may compute before they come to it, but they have to be there.
        inside = server.ranks_in_barrier
        gone = self._gone(self._missing(server)) if inside else []
        if gone:
            reason = f"{name_ranks(gone)} ended without MPI_Finalize, in which {name_ranks(inside)} waited"
            return JobEnd(reason, EXIT_CANNOT_START)
        return None

    def _look_at_start(
        self, begun: str, unbegun: list[int], waited_s: float, say: Callable[[str], None]
    ) -> JobEnd | None:
        gone = self._gone(unbegun)
        if gone:
            return JobEnd(f"{name_ranks(gone)} ended without MPI_Init, in which {begun} waited", EXIT_CANNOT_START)
        wait = f"{begun} waited {waited_s:.0f} s in MPI_Init for {name_ranks(unbegun)}"
        if waited_s >= self._timeout_s:
            return JobEnd(wait, EXIT_TIMED_OUT)
        if not self._has_named and waited_s >= self._named_after_s:
            self._has_named = True
            say(f"{wait}; the job ends if that takes {self._timeout_s:.0f} s")
        return None

    def _gone(self, ranks: Iterable[int]) -> list[int]:
        """Return those of some ranks that have ended, and did so long enough ago for others to have noticed."""
        now = time.monotonic()
        return [rank for rank in ranks if rank in self._ended and now >= self._ended[rank] + self._grace_s]

    def _unbegun(self, server: PmiServer) -> list[int]:
        return [rank for rank in range(self._size) if rank not in server.begun]

    def close(self) -> None:
        """Close the sockets, and remove what ranks that were killed while MPI was starting left of its memory."""
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()
        if self._pmix is not None:
            self._pmix.close()
        if self._relay is not None:
            self._relay.close()
        elif self._local_server is not None and self._was_used:
            remove_remains(self._local_server.name)

    def _missing(self, server: PmiServer) -> list[int]:
        inside = set(server.ranks_in_barrier)
        return [rank for rank in range(self._size) if rank not in inside]

    def _take_in(self, rank: int) -> None:
        """Take in what a rank's MPI library says; what it asks it reads, and one that does not is not waited for."""
        assert self._watcher is not None
        if self._relay is not None:
            local = self._sockets.pop(rank)
            self._watcher.unwatch(local.fileno())
            self._relay.carry(rank, local)
            return
        assert self._local_server is not None
        self._was_used = True
        try:
            data = self._sockets[rank].recv(_CHUNK_BYTES)
            if not data:
                raise ConnectionError("the rank has closed it")
            if data == REQUEST:
                self._start_pmix(rank)
                return
            for receiver, answer in self._local_server.take_in(rank, data):
                if receiver in self._sockets and self._sockets[receiver].send(answer) < len(answer):
                    raise ConnectionError("it does not read")
        except (OSError, PmiError):
            self._close(rank)

    def _start_pmix(self, rank: int) -> None:
        """Start a PMIx server, once, and tell a rank of it."""
        assert self._watcher is not None and self._local_server is not None
        self._local_server.begin(rank)
        if self._pmix is None:
            self._pmix = PmixHelper(self._size, self._watcher, self._send_pmix)
        self._pmix.tell(rank)

    def _send_pmix(self, rank: int, answer: bytes) -> None:
        if rank in self._sockets:
            with contextlib.suppress(OSError):  # it has ended, or does not read
                self._sockets[rank].send(answer)

    def _close(self, rank: int) -> None:
        assert self._watcher is not None and self._local_server is not None
        closed = self._sockets.pop(rank)
        self._watcher.unwatch(closed.fileno())
        closed.close()
        self._local_server.leave(rank)
