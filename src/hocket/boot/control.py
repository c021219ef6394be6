"""The control connection of a rank: how the ranks of a job on several hosts meet, and hear of each other's ends.

Rank 0 starts the server (`hocket.boot.control_server`) next to itself; everyone finds it at MASTER_ADDR, at the first
port behind MASTER_PORT that was free (MASTER_PORT itself is torch's), or at $HOCKET_CONTROL.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hocket.boot.control_server
from hocket import _native
from hocket.boot.control_server import keep_alive
from hocket.boot.environment import World
from hocket.errors import BootstrapMismatch, CommTimeout, HocketError, PeerFailure

_NUM_PORTS = 8
_RETRY_S = 0.05
_HANDSHAKE_S = 2.0
_NO_MESSAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, HocketError)


@dataclass(frozen=True)
class Member:
    """One rank of the job, as the others see it.

    Args:
        host: identity of its host: equal for ranks that can share memory.
        address: at which ranks of other hosts reach it.
        local_rank: its number among the ranks of its host.
        place: where it runs, for messages.
    """

    host: str
    address: str
    local_rank: int
    place: str


class ControlConnection:
    """This rank's connection, once all ranks have come.

    Args:
        connection: to the server.
        members: all ranks of the job.
    """

    def __init__(self, connection: _Lines, members: Sequence[Member]) -> None:
        self.members = members
        self.native = _native.Control([member.place for member in members])
        self._connection = connection
        self._exchanged: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self._dead: list[int] = []
        self._lost: str | None = None
        self._leaves = False
        self._sending = threading.Lock()
        _close_in_children(connection.socket)
        self._thread = threading.Thread(target=self._run, name="hocket control", daemon=True)
        self._thread.start()

    def exchange(self, text: str, timeout: float) -> list[str]:
        """Hand a text to every rank and return the texts of all, by rank; called by all of them, one at a time.

        Raises:
            PeerFailure: a rank has died.
            CommTimeout: not all of them called in time.
        """
        self._send({"exchange": text})
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._exchanged.get(timeout=0.002)
            except queue.Empty:
                _native.progress()
            if self._dead:
                places = "; ".join(f"rank {rank} ({self.members[rank].place}) died" for rank in self._dead)
                raise PeerFailure(f"{places} while the job was starting", tuple(self._dead))
            if self._lost is not None:
                raise PeerFailure(self._lost, (0,))
            if time.monotonic() > deadline:
                raise CommTimeout(f"not all ranks came to an agreement within {timeout:g} s")

    def close(self) -> None:
        """Leave the job: from now on the end of this process is no death. Communicators are closed before."""
        if self._leaves:
            return
        self._leaves = True
        self._send_notices()
        self._send({"bye": None})
        self._connection.socket.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        with self._sending:
            try:
                self._connection.send(message)
            except OSError as error:
                self._note_lost(error)

    def _send_notices(self) -> None:
        for notice in self.native.take_notices():
            self._send({notice.pop("what"): notice})

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._connection.socket, select.POLLIN)
        poll.register(self.native.fileno(), select.POLLIN)
        while not self._leaves:
            try:
                ready = {fd for fd, _ in poll.poll(500)}
                self._send_notices()
                if ready - {self.native.fileno()}:
                    for message in self._connection.receive():
                        self._take_in(message)
            except (OSError, *_NO_MESSAGE) as error:  # closed, here or there; or no server of this job says that
                if not self._leaves:
                    self._note_lost(error)
                return

    def _take_in(self, message: Mapping[str, Any]) -> None:
        (what, content), *_ = message.items()
        match what:
            case "exchange":
                self._exchanged.put(content)
            case "gone":
                self.native.note_death(content)
                self._dead.append(content)
            case "left":
                self.native.note_left(content["key"], content["rank"], content["seq"], content["history"])
            case "aborted":
                self.native.note_abort(content["key"], content["code"], content["text"], content["ranks"])
            case "tell":
                last, fingerprint, text = self.native.report(content["key"], content["seq"]) or (0, 0, "")
                self._send({"report": {**content, "last": last, "fingerprint": fingerprint, "text": text}})
            case "trace":
                self._send({"traced": {**content, "histories": self.native.histories(content["key"], content["seq"])}})
            case "verdict":
                self.native.note_verdict(content["key"], content["seq"], content["behind"], content["mismatch"])
            case _:
                raise ValueError(f"there is no message {what!r}")

    def _note_lost(self, error: Exception) -> None:
        self._lost = f"lost the control connection to the host of rank 0 ({self.members[0].place}): {error}"
        self.native.note_lost(self._lost)


def _close_in_children(connection: socket.socket) -> None:
    """A forked child that outlives this process must not hold its connection open: its death would not be seen."""
    reference = weakref.ref(connection)

    def close() -> None:
        inherited = reference()
        if inherited is not None:
            inherited.close()

    os.register_at_fork(after_in_child=close)


class _Lines:
    """A socket that carries JSON objects, one a line."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._pending = b""

    def send(self, message: Mapping[str, Any]) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive_one(self) -> Mapping[str, Any]:
        """Read until one message is complete, and no further."""
        while b"\n" not in self._pending:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("it was closed")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        message: Mapping[str, Any] = json.loads(line)
        return message

    def receive(self) -> list[Mapping[str, Any]]:
        """Read once and return the messages that are complete.

        Raises:
            OSError, ValueError: the other side is gone, or is no server of ours.
        """
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("it was closed")
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [json.loads(line) for line in lines]


def connect(world: World, generation: int, timeout: float, version: str) -> ControlConnection:
    """Meet all ranks of a job that spans hosts, at the place that the launcher's variables name.

    Args:
        world: this process's place.
        generation: how many times this process was connected before.
        timeout: seconds.
        version: of hocket, equal on all ranks.

    Raises:
        BootstrapMismatch: the variables, or the ranks, contradict each other; or no port is free.
        CommTimeout: some rank never arrived; the error names it.
        PeerFailure: a rank died meanwhile.
    """
    address, ports = _find_address()
    job = f"{world.job_of_all_hosts}/{generation}"
    if world.rank == 0:
        _start_server(address, ports, world.size, job, timeout)
    return connect_to(address, ports, job, world, timeout, version)


def start_server(size: int, job: str, timeout: float, is_at_master: bool) -> tuple[str, int]:
    """Start a server next to this process, where the ranks are told of it in another way than by the launcher.

    It listens at $HOCKET_CONTROL, or at any free port if that one is taken or the variable is not set.

    Args:
        size, job, timeout: of those who will come.
        is_at_master: whether this process is on the host that MASTER_ADDR and HOCKET_CONTROL name.

    Returns:
        Address and port, for `connect_to`.

    Raises:
        BootstrapMismatch: HOCKET_CONTROL is malformed.
    """
    address, ports = socket.gethostname(), [0]
    if is_at_master and "HOCKET_CONTROL" in os.environ:
        address, named = _find_address()
        ports = [*named, 0]
    elif is_at_master:
        address = os.environ.get("MASTER_ADDR") or address
    return address, _start_server(address, ports, size, job, timeout)


def connect_to(
    address: str, ports: Sequence[int], job: str, world: World, timeout: float, version: str
) -> ControlConnection:
    """Meet all ranks of a job at the server that rank 0 has started, or is about to; the rest is as for `connect`."""
    deadline = time.monotonic() + timeout
    hello = {
        "rank": world.rank,
        "size": world.size,
        "job": job,
        "version": version,
        "local_rank": world.local_rank,
        "local_size": world.local_size,
        "host": host_identity(),
        "place": f"{socket.gethostname()}, pid {os.getpid()}",
    }
    connection = _find_server(address, ports, hello, deadline)
    welcome = _await_welcome(connection, deadline, timeout)
    _check_hosts(welcome)
    members = [Member(each["host"], each["address"], each["local_rank"], each["place"]) for each in welcome]
    return ControlConnection(connection, members)


def host_identity() -> str:
    """Name what has to be equal for two processes to share memory: machine, boot, namespaces and user."""
    named = os.environ.get("HOCKET_HOST")
    if named:
        return named
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return " ".join([boot, os.readlink("/proc/self/ns/net"), os.readlink("/proc/self/ns/pid"), str(os.getuid())])


def _find_address() -> tuple[str, Sequence[int]]:
    named = os.environ.get("HOCKET_CONTROL")
    if named is not None:
        host, _, port = named.rpartition(":")
        if not host or not port.isdigit():
            raise BootstrapMismatch(f"HOCKET_CONTROL={named!r} must be HOST:PORT, as in node0:29600")
        return host.strip("[]"), [int(port)]
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not host or not port.isdigit():
        raise BootstrapMismatch(
            "this job spans several hosts: set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port, equal "
            "on all ranks (mpirun takes -x MASTER_ADDR -x MASTER_PORT), or HOCKET_CONTROL to HOST:PORT"
        )
    return host, range(int(port) + 1, int(port) + 1 + _NUM_PORTS)


def _start_server(address: str, ports: Sequence[int], size: int, job: str, timeout: float) -> int:
    with _listen(address, ports) as listener:
        command = [sys.executable, "-I", "-S", hocket.boot.control_server.__file__]
        subprocess.Popen(
            [*command, str(listener.fileno()), str(size), job, str(timeout)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
        port: int = listener.getsockname()[1]
        return port


def _listen(address: str, ports: Sequence[int]) -> socket.socket:
    for port in ports:
        try:
            # Not only at MASTER_ADDR: on many hosts the own name is an address of the loopback.
            if socket.has_dualstack_ipv6():
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
            return socket.create_server(("", port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise BootstrapMismatch(f"rank 0 cannot listen at port {port}: {error}") from error
    raise BootstrapMismatch(
        f"none of the ports {ports[0]} to {ports[-1]} is free at the host of rank 0 ({address}); "
        "set HOCKET_CONTROL to HOST:PORT, equal on all ranks"
    )


def _find_server(address: str, ports: Sequence[int], hello: Mapping[str, Any], deadline: float) -> _Lines:
    """Return a connection to the server of this job, which may not be there yet."""
    while True:
        last: Exception | None = None
        for port in ports:
            try:
                return _say_hello(address, port, hello)
            except (OSError, ValueError) as error:
                last = error
            _native.progress()
        if time.monotonic() > deadline:
            raise CommTimeout(
                f"rank {hello['rank']}: rank 0 never arrived: there is no server of this job at {address}, ports "
                f"{ports[0]} to {ports[-1]} (last: {last}); MASTER_ADDR and MASTER_PORT must be those of rank 0's host",
                (0,),
            )
        time.sleep(_RETRY_S)


def _say_hello(address: str, port: int, hello: Mapping[str, Any]) -> _Lines:
    connection = socket.create_connection((address, port), timeout=_HANDSHAKE_S)
    try:
        keep_alive(connection)
        connection.settimeout(_HANDSHAKE_S)
        lines = _Lines(connection)
        lines.send({"hello": hello})
        if lines.receive_one() != {"hello": hello["job"]}:
            raise ConnectionError("it is the server of something else")
        return lines
    except BaseException:
        connection.close()
        raise


def _await_welcome(connection: _Lines, deadline: float, timeout: float) -> list[Mapping[str, Any]]:
    """Wait until all ranks have come."""
    connection.socket.settimeout(_RETRY_S)
    while True:
        try:
            (what, content), *_ = connection.receive_one().items()
        except TimeoutError:
            _native.progress()
            if time.monotonic() > deadline + _HANDSHAKE_S:  # the server has the same deadline, and knows who is missing
                raise CommTimeout(f"not all ranks arrived within {timeout:g} s") from None
            continue
        except OSError as error:
            raise PeerFailure(f"rank 0 is gone, the control connection to it has ended: {error}", (0,)) from None
        match what:
            case "welcome":
                connection.socket.settimeout(None)
                welcome: list[Mapping[str, Any]] = content
                return welcome
            case "refused":
                raise BootstrapMismatch(content)
            case "missing":
                names = f"rank{'s' if len(content) > 1 else ''} {', '.join(map(str, content))}"
                raise CommTimeout(f"{names} never arrived within {timeout:g} s", tuple(content))
            case "gone":
                raise PeerFailure(f"rank {content} died while the job was starting", (content,))


def _check_hosts(members: Sequence[Mapping[str, Any]]) -> None:
    """Check that the launcher's local ranks are those that share a host."""
    hosts: dict[str, list[int]] = {}
    for rank, member in enumerate(members):
        hosts.setdefault(member["host"], []).append(rank)
    for ranks in hosts.values():
        sizes = {members[rank]["local_size"] for rank in ranks}
        if sizes != {len(ranks)}:
            raise BootstrapMismatch(
                f"ranks {ranks} are on one host ({members[ranks[0]]['place']}), but their launchers say that there are "
                f"{' or '.join(map(str, sorted(sizes)))} of them (LOCAL_WORLD_SIZE)"
            )
        if sorted(members[rank]["local_rank"] for rank in ranks) != list(range(len(ranks))):
            raise BootstrapMismatch(
                f"the local ranks of ranks {ranks}, on one host, are not 0 to {len(ranks) - 1}: LOCAL_RANK is wrong"
            )
