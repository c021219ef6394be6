"""How the ranks of a job on several hosts join.

Rank 0 starts the server (`hocket.boot.control_server`) on its host. All ranks find it at MASTER_ADDR, at the first free
port after MASTER_PORT (torch uses MASTER_PORT itself), or at HOCKET_CONTROL.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hocket import _native
from hocket.boot.connecting import Place, connect_once
from hocket.boot.control import ControlConnection, ControlMessages, Member
from hocket.boot.control_server import ControlServer
from hocket.boot.environment import World
from hocket.boot.helper import ServerTask, start_helper
from hocket.boot.job_state import NAMED_AFTER_S
from hocket.boot.nodes import Nodes
from hocket.boot.sealed import ProtocolError, Role, WrongServer
from hocket.boot.secret import find_secret
from hocket.boot.sockets import Interface, listen, resolve
from hocket.boot.summary import name_ranks
from hocket.errors import BootstrapMismatch, CommTimeout, PeerFailure

MOST_HOST = 1024  # characters of a host's identity

_NUM_PORTS = 8
_MOST_PORT = 65535
_OF_JOB_S = 1e6  # a server for MPI ends with its launcher
_RETRY_S = 0.05
_PORT_TAKEN_S = 2.0  # the server of an earlier job may still have the port
_OTHER_KEY_S = 5.0  # before a server of this job with another secret is an error
_GRACE_S = 2.0  # the server has the same deadline, and can name the missing ranks


def connect(world: World, generation: int, timeout: float, version: str) -> ControlConnection:
    """Join a job that spans hosts, at the address in the launcher's variables.

    Args:
        world: rank and job of this process.
        generation: number of earlier worlds of this process.
        timeout: seconds.
        version: version of hocket, equal on all ranks.

    Raises:
        BootstrapMismatch: the variables, or the ranks, contradict each other; or no port is free.
        CommTimeout: some rank never arrived; the message names it.
        PeerFailure: a rank died meanwhile.
    """
    address, ports = _find_address()
    job = f"{world.job_of_all_hosts}/{generation}"
    if world.rank != 0:
        return connect_to(address, ports, job, world, timeout, version)
    with _start_server(address, ports, world.size, job, timeout) as server:
        # A server of an earlier job with the same name may listen at another of these ports.
        return connect_to(address, [server.port], job, world, timeout, version)


@dataclass(frozen=True)
class StartedServer(AbstractContextManager["StartedServer"]):
    """A server started by this process; it waits for ranks until this object is closed.

    Close it when rank 0 has joined or has failed to join: then no other rank needs to wait.

    Args:
        address, port: where it listens, for `connect_to`.
        pipe: pipe to the server; closing it ends the wait.
    """

    address: str
    port: int
    pipe: IO[bytes]

    def __exit__(self, *_: object) -> None:
        self.pipe.close()


def start_server(size: int, job: str, timeout: float, is_at_master: bool) -> StartedServer:
    """Start a server on this host, for ranks that get its address by other means than the launcher's variables.

    It listens at HOCKET_CONTROL, or at any free port if that port is taken or the variable is not set.

    Args:
        size, job, timeout: number of ranks, name of the job, and seconds in which all ranks must join.
        is_at_master: whether this process is on the host that MASTER_ADDR and HOCKET_CONTROL name.

    Raises:
        BootstrapMismatch: HOCKET_CONTROL is malformed.
    """
    address, ports = socket.gethostname(), [0]
    if is_at_master and "HOCKET_CONTROL" in os.environ:
        address, named = _find_address()
        ports = [*named, 0]
    elif is_at_master:
        address = os.environ.get("MASTER_ADDR") or address
    return _start_server(address, ports, size, job, timeout)


def connect_to(
    address: str, ports: Sequence[int], job: str, world: World, timeout: float, version: str
) -> ControlConnection:
    """Join a job at the server that rank 0 has started or will start; other arguments and errors as for `connect`."""
    deadline = time.monotonic() + timeout
    certificate = os.environ.get("HOCKET_TLS_CERT") or None
    place = Place(find_secret(), job, world.size, world.rank, certificate=certificate)
    hello = {
        "size": world.size,
        "version": version,
        "local_rank": world.local_rank,
        "local_size": world.local_size,
        "host": host_identity(),
        "place": f"{socket.gethostname()}, pid {os.getpid()}",
    }
    with _native.control_event("wait for the server", 0):
        connection = find_server(address, ports, place, deadline)
    try:
        connection.send("hello", hello)
        with _native.control_event("wait for welcome", 0):
            welcome = _await_welcome(connection, deadline, timeout)
        _check_hosts(welcome["members"])
    except BaseException:
        connection.socket.close()
        raise
    members = [Member(each["host"], each["address"], each["local_rank"], each["place"]) for each in welcome["members"]]
    return ControlConnection(connection, members, welcome["nonce"])


def host_identity() -> str:
    """Return a text that is equal for processes that can share memory: boot, namespaces and user, or HOCKET_HOST."""
    named = os.environ.get("HOCKET_HOST")
    if named:
        if not named.isprintable() or len(named) > MOST_HOST:  # bytes that are not UTF-8 are not printable
            raise BootstrapMismatch(
                f"HOCKET_HOST={named[:80]!r} must be printable text of at most {MOST_HOST} characters, not {len(named)}"
            )
        return named
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return " ".join([boot, os.readlink("/proc/self/ns/net"), os.readlink("/proc/self/ns/pid"), str(os.getuid())])


def _find_address() -> tuple[str, Sequence[int]]:
    named = os.environ.get("HOCKET_CONTROL")
    if named is not None:
        host, _, port = named.rpartition(":")
        if not host or not port.isdigit():
            raise BootstrapMismatch(f"HOCKET_CONTROL={named!r} must be HOST:PORT, such as node0:29600")
        return host.strip("[]"), [int(port)]
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not host or not port.isdigit():
        raise BootstrapMismatch(
            "this job spans several hosts: set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port, equal "
            "on all ranks (mpirun takes -x MASTER_ADDR -x MASTER_PORT), or HOCKET_CONTROL to HOST:PORT"
        )
    return host, _ports_after(int(port))


def _ports_after(master_port: int) -> range:
    return range(master_port + 1, min(master_port + 1 + _NUM_PORTS, _MOST_PORT + 1))


def _start_server(address: str, ports: Sequence[int], size: int, job: str, timeout: float) -> StartedServer:
    secret, files = find_secret(), _tls_files()
    listeners = listen(address, ports, min(timeout, _PORT_TAKEN_S))
    try:
        fds = [listener.fileno() for listener in listeners]
        task = ServerTask(fds, size, job, timeout, secret.key.hex(), files)
        pipe = start_helper("hocket.boot.control_server", task)
        return StartedServer(address, listeners[0].getsockname()[1], pipe)
    finally:
        for listener in listeners:
            listener.close()


def _tls_files() -> list[str | None] | None:
    """Return the paths of certificate and key, or None without TLS; raise BootstrapMismatch if they are unusable."""
    certificate, key = os.environ.get("HOCKET_TLS_CERT"), os.environ.get("HOCKET_TLS_KEY")
    if not certificate:
        return None
    from hocket.boot.tls import TlsFiles  # the module is large, and TLS is rarely enabled

    TlsFiles(certificate, key).server_side()
    return [os.path.abspath(certificate), key and os.path.abspath(key)]


def mpi_server_place(nodes: Nodes) -> tuple[str, list[int]]:
    """Return the address and ports at which the launcher of host 0 may listen for the launchers of other hosts."""
    ports = list(_ports_after(nodes.master_port or 0))
    if "HOCKET_CONTROL" not in os.environ:
        return nodes.master_addr, ports
    address, named = _find_address()
    return address, [*named, *ports]


def make_mpi_server(nodes: Nodes, size: int, job: str, owner_fd: int) -> tuple[ControlServer, int]:
    """Create a server for MPI in this process; return it and its port.

    Args:
        nodes: hosts of the job.
        size, job: as for `start_server`.
        owner_fd: reading end of a pipe; the server stops waiting when the pipe is closed.

    Raises:
        BootstrapMismatch: no port is free.
    """
    listeners = listen(*mpi_server_place(nodes), _PORT_TAKEN_S)
    task = ServerTask([], size, job, _OF_JOB_S, find_secret().key.hex(), _tls_files())
    server = ControlServer(task, listeners, owner_fd, (nodes.num_nodes, size // nodes.num_nodes))
    return server, listeners[0].getsockname()[1]


def find_server(address: str, ports: Sequence[int], place: Place, deadline: float) -> ControlMessages:
    """Return a connection to the server of this job; retry until the server has started.

    Args:
        address: name or address of rank 0's host.
        ports: ports at which it may listen.
        place: identity of this process.
        deadline: by `time.monotonic`.

    Raises:
        BootstrapMismatch: the server of this job has another secret.
        CommTimeout: the server was not found in time.
    """
    first_refused_s: float | None = None  # by a server of this job
    interfaces: list[Interface] = []
    begun_s, has_reported = time.monotonic(), place.role != Role.CONTROL  # for MPI, the launcher reports it
    while True:
        best_error: Exception | None = None  # the most informative error of this round
        refusal: WrongServer | None = None
        try:
            interfaces = interfaces or resolve(address, deadline - time.monotonic())
        except OSError as error:
            best_error = error
        for interface, port in itertools.product(interfaces, ports):
            try:
                connection, end = connect_once(interface, port, place, deadline)
            except (OSError, ProtocolError) as error:
                if best_error is None or _is_more_informative(error, best_error):
                    best_error = error
                if isinstance(error, WrongServer) and error.is_of_job:
                    refusal = error
            else:
                return ControlMessages(connection, end, place)
            _native.progress()
            if time.monotonic() > deadline:
                break
        now = time.monotonic()
        if not has_reported and now - begun_s >= NAMED_AFTER_S:
            has_reported = True
            where = f"{address}, ports {ports[0]} to {ports[-1]} ({best_error})"
            _report_waiting(f"rank {place.rank} waits at start-up for rank 0 at {where}", round(deadline - begun_s))
        first_refused_s = None if refusal is None else now if first_refused_s is None else first_refused_s
        if first_refused_s is not None and (now - first_refused_s > _OTHER_KEY_S or now > deadline):
            raise BootstrapMismatch(f"rank {place.rank} cannot join the job at {address}: {refusal}")
        if now > deadline:
            raise CommTimeout(
                f"rank {place.rank}: rank 0 never arrived: found no server for this job at {address}, ports "
                f"{ports[0]} to {ports[-1]} ({best_error}); MASTER_ADDR and MASTER_PORT must be those of rank 0's host",
                (0,),
            )
        time.sleep(_RETRY_S)


def _is_more_informative(error: Exception, other: Exception) -> bool:
    """Return whether this connection error helps a user more; a refused connection helps least."""
    return _weight(error) > _weight(other)


def _weight(error: Exception) -> int:
    return next(
        at for at, kind in enumerate((ConnectionRefusedError, OSError, ProtocolError)) if isinstance(error, kind)
    )


def _await_welcome(connection: ControlMessages, deadline: float, timeout: float) -> Mapping[str, Any]:
    """Wait until all ranks have joined."""
    connection.socket.settimeout(_RETRY_S)
    while True:
        try:
            kind, content = connection.receive_one()
        except TimeoutError:
            _native.progress()
            if time.monotonic() > deadline + _GRACE_S:
                raise CommTimeout(f"not all ranks arrived within {timeout:g} s") from None
            continue
        except (OSError, ProtocolError) as error:
            raise PeerFailure(f"rank 0 has ended: lost the control connection to it: {error}", (0,)) from None
        match kind:
            case "welcome":
                connection.socket.settimeout(None)
                welcome: Mapping[str, Any] = content
                return welcome
            case "refused":
                raise BootstrapMismatch(content)
            case "awaited":
                _report_waiting(f"rank 0 waits at start-up for {name_ranks(content)}", timeout)
            case "missing":
                raise CommTimeout(f"{name_ranks(content)} never arrived within {timeout:g} s", tuple(content))
            case "gone":
                raise PeerFailure(f"rank {content} died while the job was starting", (content,))


def _report_waiting(text: str, timeout: float) -> None:
    """Print which ranks a start waits for, as the native module does on one host."""
    print(f"hocket: {text}; still waiting after {NAMED_AFTER_S:g} s, timeout {timeout:g} s", file=sys.stderr)


def _check_hosts(members: Sequence[Mapping[str, Any]]) -> None:
    """Check that the launcher's local ranks agree with the ranks that share a host."""
    hosts: dict[str, list[int]] = {}
    for rank, member in enumerate(members):
        hosts.setdefault(member["host"], []).append(rank)
    for ranks in hosts.values():
        sizes = {members[rank]["local_size"] for rank in ranks}
        if sizes != {len(ranks)}:
            raise BootstrapMismatch(
                f"{len(ranks)} ranks share one host ({members[ranks[0]]['place']}): ranks {ranks}; their "
                f"LOCAL_WORLD_SIZE is {' or '.join(map(str, sorted(sizes)))}; to try several hosts on one machine, "
                "set a different HOCKET_HOST for each launcher"
            )
        if sorted(members[rank]["local_rank"] for rank in ranks) != list(range(len(ranks))):
            raise BootstrapMismatch(f"LOCAL_RANK of ranks {ranks}, which share one host, must be 0 to {len(ranks) - 1}")
