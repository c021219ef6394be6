"""How MPI starts under the launchers of several hosts: the launcher of host 0 serves PMI-1, the others relay messages.

No connection is opened before a rank's MPI library sends a message. Launchers find and authenticate each other as ranks
do (`hocket.boot.joining`). The lines of each rank have their own connection and thread, since both steps may take a
while.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hocket.boot.connecting import Place
from hocket.boot.job_result import EXIT_CANNOT_START, EXIT_TIMED_OUT, JobEnd
from hocket.boot.mpi_limits import Limits
from hocket.boot.nodes import Nodes
from hocket.boot.pmi import PmiServer
from hocket.boot.pmi_relay import UNFINALIZED, Passage
from hocket.boot.sealed import ProtocolError, Role
from hocket.boot.summary import name_ranks
from hocket.errors import CommTimeout, HocketError

if TYPE_CHECKING:
    from hocket.boot.control import ControlMessages
    from hocket.boot.control_server import ControlServer

_BYE_S = 1.0
_LAST_WORDS_S = 1.0  # for the last messages of ranks that have ended
_ENDING_S = 5.0  # from the end of a rank's socket to the end of the rank


class MpiRelay:
    """A launcher's part in the start of the job's MPI.

    Args:
        nodes: hosts of the job.
        size: number of ranks of the job.
        limits: time limits; `keep_going`: whether ranks may continue without failed ranks of other hosts.
        remove_too: as for `MpiSockets`.
    """

    def __init__(self, nodes: Nodes, size: int, limits: Limits, remove_too: Callable[[str], None]) -> None:
        self._nodes = nodes
        self._size = size
        self._limits = limits
        self._remove_too = remove_too
        self._lock = threading.Lock()  # protects the start of the server
        self._server: ControlServer | None = None
        self._port = 0
        self._owner_fd: int | None = None
        self._job = f"MPI of port {nodes.master_port}"  # hosts may have different names for host 0
        self._begun_s: float | None = None
        self._has_reported = False
        self._lost_s: float | None = None  # when the end of a rank on another host was reported
        self._codes: dict[int, int] = {}  # of ranks that have ended here
        self._has_ended = threading.Condition()
        self._searching: list[int] = []
        self._locals: list[socket.socket] = []
        self._passages: dict[int, Passage] = {}
        self._ends: list[JobEnd] = []
        self._failed_reported: set[int] = set()
        self._threads: dict[int, threading.Thread] = {}

    @property
    def server(self) -> PmiServer | None:
        """State of all ranks' MPI; only on host 0."""
        return None if self._server is None else self._server.pmi

    @property
    def is_used(self) -> bool:
        return self._begun_s is not None

    def carry(self, rank: int, local: socket.socket) -> None:
        """Relay the messages of a rank's MPI library, which has sent its first one; takes over the socket."""
        self._begun_s = self._begun_s or time.monotonic()
        self._searching.append(rank)
        self._locals.append(local)
        local.setblocking(True)
        thread = threading.Thread(target=self._carry, args=(rank, local), name=f"hocket MPI {rank}", daemon=True)
        self._threads[rank] = thread
        thread.start()

    def take_failed(self) -> dict[int, int]:
        """Return the exit codes of this host's ranks whose program has failed; each only once."""
        codes = {rank: passage.failed_code for rank, passage in list(self._passages.items())}
        failed = {rank: code for rank, code in codes.items() if code is not None and rank not in self._failed_reported}
        self._failed_reported.update(failed)
        return failed

    def check(self, report: Callable[[str], None]) -> JobEnd | None:
        """Return why the job must end, or None; `report` is called with a message about a long search."""
        if self._ends:
            return self._ends[0]
        lost = next((each.lost for each in list(self._passages.values()) if each.lost is not None), None)
        if lost is not None and not self._limits.keep_going:
            now = time.monotonic()
            self._lost_s = self._lost_s or now
            if now >= self._lost_s + self._limits.grace_s:  # ranks that notice it themselves give better messages
                return JobEnd(lost, EXIT_CANNOT_START)
        is_late = self._begun_s is not None and time.monotonic() >= self._begun_s + self._limits.named_after_s
        if is_late and self._searching and not self._has_reported:
            self._has_reported = True
            waiting = name_ranks(sorted(self._searching))
            report(
                f"{waiting} waited {self._limits.named_after_s:.0f} s in MPI_Init for the launcher of host 0 at "
                f"{self._nodes.master_addr}: either no rank has started MPI there, or it is unreachable"
            )
        return None

    def note_end(self, rank: int, code: int) -> None:
        """Note the exit code of a rank, for the other hosts."""
        with self._has_ended:
            self._codes[rank] = code
            self._has_ended.notify_all()

    def close(self, exit_code: int | None) -> None:
        """Stop the server after all ranks have ended, and remove shared memory of MPI left by killed ranks.

        Args:
            exit_code: exit code of this launcher's ranks, for the other launchers; None: unknown.
        """
        until_s = time.monotonic() + _LAST_WORDS_S
        for rank in set(self._codes) & set(self._passages):  # their exit codes are being sent
            self._threads[rank].join(max(0.0, until_s - time.monotonic()))
        if self._owner_fd is not None:
            if exit_code is not None and self._server is not None:
                os.write(self._owner_fd, b"%d" % exit_code)
                self._server.has_sent_bye.wait(_BYE_S)
            os.close(self._owner_fd)
        for local in self._locals:
            local.close()
        for passage in list(self._passages.values()):
            passage.remove_remains()

    def _carry(self, rank: int, local: socket.socket) -> None:
        try:
            connection = self._find_server(rank)
        except HocketError as error:  # the library waits until `check` ends the job
            code = EXIT_TIMED_OUT if isinstance(error, CommTimeout) else EXIT_CANNOT_START
            self._ends.append(JobEnd(f"MPI could not start across hosts: {error}", code))
            return
        except Exception as error:  # a bug of ours; nothing else would report it
            self._ends.append(JobEnd(f"MPI could not start across hosts: {error!r}", EXIT_CANNOT_START))
            return
        with connection.socket:  # closed after the rank's last message
            passage = Passage(local, connection.socket, connection.end, self._remove_too)
            self._passages[rank] = passage
            try:
                passage.run()
                with self._has_ended:
                    self._has_ended.wait_for(lambda: rank in self._codes, _ENDING_S)
                if rank in self._codes and self._is_unfinalized(rank, passage):
                    passage.send_end(UNFINALIZED)
                    passage.lost = (
                        passage.lost or f"rank {rank} ended without MPI_Finalize; other ranks may wait for it"
                    )
                elif rank in self._codes:
                    passage.send_end(self._codes[rank])
            except (OSError, ProtocolError) as error:
                reason = passage.lost or f"MPI's connection to the launcher of host 0 broke: {error}"
                self._ends.append(JobEnd(reason, EXIT_CANNOT_START))
                return
        local.close()
        if passage.abort_code is not None:
            self._ends.append(JobEnd.of_abort(rank if passage.is_of_library else None, passage.abort_code))

    def _is_unfinalized(self, rank: int, passage: Passage) -> bool:
        """Return whether a rank exited with 0 although its MPI is not finalized."""
        is_well = self._codes[rank] == 0 and passage.abort_code is None
        return is_well and not passage.has_finalized and not self._limits.keep_going

    def _find_server(self, rank: int) -> ControlMessages:
        # Imported here: few jobs need it, and imports delay the start of all jobs.
        from hocket.boot.joining import find_server, mpi_server_place
        from hocket.boot.secret import find_secret

        address, ports = mpi_server_place(self._nodes)
        if self._nodes.node_rank == 0:
            ports = [self._port_of_server()]
        certificate = os.environ.get("HOCKET_TLS_CERT") or None
        place = Place(find_secret(), self._job, self._size, rank, Role.PMI, certificate)
        connection = find_server(address, ports, place, time.monotonic() + self._limits.timeout_s)
        self._searching.remove(rank)
        return connection

    def _port_of_server(self) -> int:
        """Return the server's port; start the server if it is not running."""
        from hocket.boot.joining import make_mpi_server

        with self._lock:
            if self._server is None:
                owner_end, self._owner_fd = os.pipe()
                try:
                    self._server, self._port = make_mpi_server(self._nodes, self._size, self._job, owner_end)
                except BaseException:
                    os.close(owner_end)
                    raise
                serving = (self._server, owner_end)
                threading.Thread(target=self._serve, args=serving, name="hocket MPI", daemon=True).start()
            return self._port

    def _serve(self, server: ControlServer, owner_end: int) -> None:
        try:
            server.serve()
        finally:
            server.close()
            os.close(owner_end)
