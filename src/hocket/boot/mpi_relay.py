"""How MPI starts under the launchers of several hosts: that of host 0 serves PMI-1, the others hand on what is said.

Nothing is opened before a rank's MPI library speaks. Launchers find each other as ranks do (`hocket.boot.joining`), and
prove to each other that they have the user's secret; each rank's lines have a connection of their own, which a thread
serves, since finding and proving may take a while.
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
_LAST_WORDS_S = 1.0  # of the ranks' sockets, once the ranks have ended
_ENDING_S = 5.0  # from the end of a rank's socket to the end of the rank


class MpiRelay:
    """What a launcher has of the job's MPI.

    Args:
        nodes: the job's hosts.
        size: ranks of the job.
        remove_too: as of `MpiSockets`.
        limits: of time; `keep_going`: whether ranks may go on without those of other hosts that have failed.
    """

    def __init__(self, nodes: Nodes, size: int, limits: Limits, remove_too: Callable[[str], None]) -> None:
        self._nodes = nodes
        self._size = size
        self._limits = limits
        self._remove_too = remove_too
        self._lock = threading.Lock()  # of the start of the server
        self._server: ControlServer | None = None
        self._port = 0
        self._asker: int | None = None
        self._job = f"MPI of port {nodes.master_port}"  # each host may have another name for the first one
        self._begun_s: float | None = None
        self._has_told = False
        self._lost_s: float | None = None  # when an end on another host was heard of
        self._codes: dict[int, int] = {}  # of ranks that have ended here
        self._has_ended = threading.Condition()
        self._searching: list[int] = []
        self._locals: list[socket.socket] = []
        self._passages: dict[int, Passage] = {}
        self._ends: list[JobEnd] = []
        self._failed_told: set[int] = set()
        self._threads: dict[int, threading.Thread] = {}

    @property
    def server(self) -> PmiServer | None:
        """What is known here of all ranks' MPI: on host 0 alone."""
        return None if self._server is None else self._server.pmi

    @property
    def is_used(self) -> bool:
        return self._begun_s is not None

    def carry(self, rank: int, local: socket.socket) -> None:
        """Hand on what a rank's MPI library says, which has begun to speak; from now on the socket is this one's."""
        self._begun_s = self._begun_s or time.monotonic()
        self._searching.append(rank)
        self._locals.append(local)
        local.setblocking(True)
        thread = threading.Thread(target=self._carry, args=(rank, local), name=f"hocket MPI {rank}", daemon=True)
        self._threads[rank] = thread
        thread.start()

    def take_failed(self) -> dict[int, int]:
        """Return the exit codes of ranks here whose program has failed; once for each."""
        codes = {rank: passage.failed_code for rank, passage in list(self._passages.items())}
        failed = {rank: code for rank, code in codes.items() if code is not None and rank not in self._failed_told}
        self._failed_told.update(failed)
        return failed

    def look(self, say: Callable[[str], None]) -> JobEnd | None:
        """Return why the job has to end, if it has to; `say` is called with a line about a search that takes long."""
        if self._ends:
            return self._ends[0]
        lost = next((each.lost for each in list(self._passages.values()) if each.lost is not None), None)
        if lost is not None and not self._limits.keep_going:
            now = time.monotonic()
            self._lost_s = self._lost_s or now
            if now >= self._lost_s + self._limits.grace_s:  # ranks that notice it themselves say more
                return JobEnd(lost, EXIT_CANNOT_START)
        is_late = self._begun_s is not None and time.monotonic() >= self._begun_s + self._limits.named_after_s
        if is_late and self._searching and not self._has_told:
            self._has_told = True
            waiting = name_ranks(sorted(self._searching))
            say(
                f"{waiting} waited {self._limits.named_after_s:.0f} s in MPI_Init for the launcher of host 0 at "
                f"{self._nodes.master_addr}: no rank has started MPI there, or it cannot be reached"
            )
        return None

    def note_end(self, rank: int, code: int) -> None:
        """Note how a rank has ended, for the other hosts."""
        with self._has_ended:
            self._codes[rank] = code
            self._has_ended.notify_all()

    def close(self, exit_code: int | None) -> None:
        """End the server once no rank is left, and remove what killed ranks left of MPI's memory.

        Args:
            exit_code: of the ranks of this launcher, for those of the others; None: it is not known.
        """
        until_s = time.monotonic() + _LAST_WORDS_S
        for rank in set(self._codes) & set(self._passages):  # how they have ended is on its way
            self._threads[rank].join(max(0.0, until_s - time.monotonic()))
        if self._asker is not None:
            if exit_code is not None and self._server is not None:
                os.write(self._asker, b"%d" % exit_code)
                self._server.has_said_bye.wait(_BYE_S)
            os.close(self._asker)
        for local in self._locals:
            local.close()
        for passage in list(self._passages.values()):
            passage.remove_remains()

    def _carry(self, rank: int, local: socket.socket) -> None:
        try:
            found = self._find_server(rank)
        except HocketError as error:  # the library waits on, until `look` has told why the job ends
            code = EXIT_TIMED_OUT if isinstance(error, CommTimeout) else EXIT_CANNOT_START
            self._ends.append(JobEnd(f"MPI could not start across hosts: {error}", code))
            return
        except Exception as error:  # a mistake of ours: nobody else would hear of it
            self._ends.append(JobEnd(f"MPI could not start across hosts: {error!r}", EXIT_CANNOT_START))
            return
        with found.socket:  # which is closed behind the rank's last word
            passage = Passage(local, found.socket, found.end, self._remove_too)
            self._passages[rank] = passage
            try:
                passage.run()
                with self._has_ended:
                    self._has_ended.wait_for(lambda: rank in self._codes, _ENDING_S)
                if rank in self._codes and self._is_unfinalized(rank, passage):
                    passage.say_end(UNFINALIZED)
                    passage.lost = passage.lost or f"rank {rank} ended without MPI_Finalize, and others may wait"
                elif rank in self._codes:
                    passage.say_end(self._codes[rank])
            except (OSError, ProtocolError) as error:
                reason = passage.lost or f"MPI's connection to the launcher of host 0 broke: {error}"
                self._ends.append(JobEnd(reason, EXIT_CANNOT_START))
                return
        local.close()
        if passage.abort_code is not None:
            self._ends.append(JobEnd.of_abort(rank if passage.is_of_library else None, passage.abort_code))

    def _is_unfinalized(self, rank: int, passage: Passage) -> bool:
        """Whether a rank has ended as if all were well, though its MPI has not."""
        is_well = self._codes[rank] == 0 and passage.abort_code is None
        return is_well and not passage.has_finalized and not self._limits.keep_going

    def _find_server(self, rank: int) -> ControlMessages:
        # Here, since few jobs need it, and all wait for the launcher to start.
        from hocket.boot.joining import find_server, mpi_server_place
        from hocket.boot.secret import find_secret

        address, ports = mpi_server_place(self._nodes)
        if self._nodes.node_rank == 0:
            ports = [self._port_of_server()]
        certificate = os.environ.get("HOCKET_TLS_CERT") or None
        place = Place(find_secret(), self._job, self._size, rank, Role.PMI, certificate)
        found = find_server(address, ports, place, time.monotonic() + self._limits.timeout_s)
        self._searching.remove(rank)
        return found

    def _port_of_server(self) -> int:
        """Start the server where it is not there yet; return its port."""
        from hocket.boot.joining import make_mpi_server

        with self._lock:
            if self._server is None:
                asked, self._asker = os.pipe()
                try:
                    self._server, self._port = make_mpi_server(self._nodes, self._size, self._job, asked)
                except BaseException:
                    os.close(asked)
                    raise
                threading.Thread(target=self._serve, args=(self._server, asked), name="hocket MPI", daemon=True).start()
            return self._port

    def _serve(self, server: ControlServer, asked: int) -> None:
        try:
            server.serve()
        finally:
            server.close()
            os.close(asked)
