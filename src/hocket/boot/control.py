"""The control connection of a rank: how the ranks of a job on several hosts meet, and hear of each other's ends.

Rank 0 starts the server (`hocket.boot.control_server`) next to itself; everyone finds it at MASTER_ADDR, at the first
port behind MASTER_PORT that was free (MASTER_PORT itself is torch's), or at $HOCKET_CONTROL.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import queue
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket import _native
from hocket.boot.connecting import Place, connect_once
from hocket.boot.environment import World
from hocket.boot.helper import RelayTask, ServerTask, start_helper
from hocket.boot.messages import MOST_TEXT, TO_RANK, decode, encode
from hocket.boot.sealed import MOST_NBYTES, ProtocolError, RankEnd, WrongServer
from hocket.boot.secret import find_secret
from hocket.boot.sockets import listen
from hocket.errors import BootstrapMismatch, CommTimeout, PeerFailure, ResourceExhausted

_NUM_PORTS = 8
_RETRY_S = 0.05
_OTHER_KEY_S = 5.0  # that a server of this job with another secret is looked at before that is an error
_GRACE_S = 2.0  # the server has the same deadline, and knows who is missing


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

    def __init__(self, connection: _Messages, members: Sequence[Member], nonce: str) -> None:
        self.members = members
        self.native = _native.Control([member.place for member in members])
        self.object_key = connection.place.secret.derive(
            b"hocket objects", connection.place.job.encode(), nonce.encode()
        )
        self._meeting_key = connection.place.secret.derive(b"hocket meeting", nonce.encode())
        self._connection = connection
        self._exchanged: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self._gathered: dict[int, queue.SimpleQueue[list[str]]] = {}  # by key, while this rank waits
        self._dead: list[int] = []
        self._lost: str | None = None
        self._leaves = False
        _close_in_children(connection.socket)
        self._thread = threading.Thread(target=self._run, name="hocket control", daemon=True)
        self._thread.start()

    def exchange(self, text: str, timeout: float) -> list[str]:
        """Hand a text to every rank and return the texts of all, by rank; called by all of them, one at a time.

        Raises:
            PeerFailure: a rank has died.
            CommTimeout: not all of them called in time.
        """
        _check_length(text)
        self._send("exchange", text)
        return self._await(self._exchanged, range(len(self.members)), timeout)

    def gather(self, members: Sequence[int], name: str, text: str, timeout: float) -> list[str]:
        """Hand a text to some ranks and return the texts of all of them, in their order; called by all of them.

        Args:
            members: job ranks, in the same order on all of them.
            name: used once, equal on all of them.
            text: of this rank.
            timeout: seconds.

        Raises:
            PeerFailure: one of them has died.
            CommTimeout: not all of them called in time.
        """
        _check_length(text)
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        gathered = self._gathered[key] = queue.SimpleQueue()
        try:
            self._send("gather", {"key": key, "members": list(members), "text": text})
            return self._await(gathered, members, timeout)
        finally:
            del self._gathered[key]

    def _await(self, texts: queue.SimpleQueue[list[str]], members: Sequence[int], timeout: float) -> list[str]:
        deadline = time.monotonic() + timeout
        while True:
            try:
                return texts.get(timeout=0.002)
            except queue.Empty:
                _native.progress()
            dead = [rank for rank in self._dead if rank in members]
            if dead:
                places = "; ".join(f"rank {rank} ({self.members[rank].place}) died" for rank in dead)
                raise PeerFailure(f"{places} while ranks were coming together", tuple(dead))
            if self._lost is not None:
                raise PeerFailure(self._lost, (0,))
            if time.monotonic() > deadline:
                raise CommTimeout(f"timed out after {timeout:g} s: not all of ranks {list(members)} came together")

    def close(self) -> None:
        """Leave the job: from now on the end of this process is no death. Communicators are closed before."""
        if self._leaves:
            return
        self._leaves = True
        self._send_notices()
        self._send("bye", None)
        self._connection.socket.close()

    def meeting_name(self, host: str) -> str:
        """Name the abstract unix socket at which the ranks of a host meet.

        Other users cannot guess it, and several "hosts" (HOCKET_HOST) on one machine have one each.
        """
        return f"hocket-{hmac.digest(self._meeting_key, host.encode(), 'sha256').hex()[:32]}"

    def connect_pmi(self) -> socket.socket:
        """Return a socket over which an MPI library of this rank finds its process manager: a helper hands it on."""
        ours, others = socket.socketpair()
        with others:
            place = self._connection.place
            address, port = self._connection.socket.getpeername()[:2]
            secret = place.secret.key.hex()
            fds = [others.fileno()]
            task = RelayTask(fds, address, port, place.job, place.size, place.rank, secret, place.certificate)
            start_helper("hocket.boot.pmi_relay", task)
        return ours

    def _send(self, kind: str, content: object) -> None:
        try:
            self._connection.send(kind, content)
        except OSError as error:
            self._note_lost(error)

    def _send_notices(self) -> None:
        for notice in self.native.take_notices():
            if "text" in notice:
                notice["text"] = notice["text"][:MOST_TEXT]
            self._send(notice.pop("what"), notice)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._connection.socket, select.POLLIN)
        poll.register(self.native.fileno(), select.POLLIN)
        while not self._leaves:
            try:
                ready = {fd for fd, _ in poll.poll(500)}
                self._send_notices()
                if ready - {self.native.fileno()}:
                    for kind, content in self._connection.receive():
                        self._take_in(kind, content)
            except Exception as error:  # closed, here or there; and whatever ends this thread is told to the operations
                if not self._leaves:
                    self._note_lost(error)
                return

    def _take_in(self, kind: str, content: Any) -> None:
        match kind:
            case "exchange":
                self._exchanged.put(content)
            case "gathered":
                if (waiting := self._gathered.get(content["key"])) is not None:
                    waiting.put(content["texts"])
            case "gone":
                self.native.note_death(content)
                self._dead.append(content)
            case "left":
                self.native.note_left(content["key"], content["rank"], content["seq"], content["history"])
            case "aborted":
                self.native.note_abort(content["key"], content["code"], content["text"], content["ranks"])
            case "tell":
                last, fingerprint, text = self.native.report(content["key"], content["seq"]) or (0, 0, "")
                self._send("report", {**content, "last": last, "fingerprint": fingerprint, "text": text[:MOST_TEXT]})
            case "trace":
                self._send("traced", {**content, "histories": self.native.histories(content["key"], content["seq"])})
            case "verdict":
                self.native.note_verdict(content["key"], content["seq"], content["behind"], content["mismatch"])
            case _:
                raise ProtocolError(f"a message {kind!r} came after the start")

    def _note_lost(self, error: Exception) -> None:
        self._lost = f"lost the control connection to the host of rank 0 ({self.members[0].place}): {error}"
        self.native.note_lost(self._lost)


def _check_length(text: str) -> None:
    if len(text) > MOST_NBYTES // 8:
        raise ResourceExhausted(
            f"a rank may hand at most {MOST_NBYTES // 8} characters to others at start-up, not {len(text)}"
        )


def _close_in_children(connection: socket.socket) -> None:
    """A forked child that outlives this process must not hold its connection open: its death would not be seen."""
    reference = weakref.ref(connection)

    def close() -> None:
        inherited = reference()
        if inherited is not None:
            inherited.close()

    os.register_at_fork(after_in_child=close)


class _Messages:
    """The messages of a connection to the server, after both sides have proven who they are."""

    def __init__(self, connection: socket.socket, end: RankEnd, place: Place) -> None:
        self.socket = connection
        self.place = place
        self._end = end
        self._lock = threading.Lock()  # of the end: one thread reads, and others send
        self._came: deque[tuple[str, Any]] = deque()

    def send(self, kind: str, content: object) -> None:
        message = encode(kind, content)
        with self._lock:
            self._end.send(message)
            self._flush()

    def receive(self) -> list[tuple[str, Any]]:
        """Read once and return the messages that are complete, each as its kind and its content.

        Raises:
            OSError, ProtocolError: the other side is gone, or says what no server says.
        """
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("it was closed")
        with self._lock:
            messages = self._end.take_in(data)
            if self._end.outgoing:  # TLS has to say something
                self._flush()
        return [decode(message, TO_RANK, self.place.size) for message in messages]

    def receive_one(self) -> tuple[str, Any]:
        """Return one message; those that came with it are returned by the next calls."""
        while not self._came:
            self._came.extend(self.receive())
        return self._came.popleft()

    def _flush(self) -> None:
        self.socket.sendall(self._end.outgoing)
        self._end.outgoing.clear()


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
    certificate = os.environ.get("HOCKET_TLS_CERT") or None
    place = Place(find_secret(), job, world.size, world.rank, certificate=certificate)
    connection = _find_server(address, ports, place, deadline)
    try:
        hello = {
            "size": world.size,
            "version": version,
            "local_rank": world.local_rank,
            "local_size": world.local_size,
            "host": host_identity(),
            "place": f"{socket.gethostname()}, pid {os.getpid()}",
        }
        connection.send("hello", hello)
        welcome = _await_welcome(connection, deadline, timeout)
        _check_hosts(welcome["members"])
    except BaseException:
        connection.socket.close()
        raise
    members = [Member(each["host"], each["address"], each["local_rank"], each["place"]) for each in welcome["members"]]
    return ControlConnection(connection, members, welcome["nonce"])


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
    secret, files = find_secret(), _tls_files()
    listeners = listen(address, ports)
    try:
        fds = [listener.fileno() for listener in listeners]
        start_helper("hocket.boot.control_server", ServerTask(fds, size, job, timeout, secret.key.hex(), files))
        port: int = listeners[0].getsockname()[1]
        return port
    finally:
        for listener in listeners:
            listener.close()


def _tls_files() -> list[str | None] | None:
    """Return the paths of certificate and key, where TLS is asked for; BootstrapMismatch where they cannot be used."""
    certificate, key = os.environ.get("HOCKET_TLS_CERT"), os.environ.get("HOCKET_TLS_KEY")
    if not certificate:
        return None
    from hocket.boot.tls import TlsFiles  # the module is large, and few ask for it

    TlsFiles(certificate, key).server_side()
    return [os.path.abspath(certificate), key and os.path.abspath(key)]


def _find_server(address: str, ports: Sequence[int], place: Place, deadline: float) -> _Messages:
    """Return a connection to the server of this job, which may not be there yet."""
    first_refused_s: float | None = None  # by a server of this job
    while True:
        last: Exception | None = None
        refusal: WrongServer | None = None
        for port in ports:
            try:
                connection, end = connect_once(address, port, place)
            except WrongServer as error:
                last = error
                refusal = error if error.is_of_job else refusal
            except (OSError, ProtocolError) as error:
                last = error
            else:
                return _Messages(connection, end, place)
            _native.progress()
        now = time.monotonic()
        first_refused_s = None if refusal is None else now if first_refused_s is None else first_refused_s
        if first_refused_s is not None and (now - first_refused_s > _OTHER_KEY_S or now > deadline):
            raise BootstrapMismatch(f"rank {place.rank} cannot join the job at {address}: {refusal}")
        if now > deadline:
            raise CommTimeout(
                f"rank {place.rank}: rank 0 never arrived: found no server for this job at {address}, ports "
                f"{ports[0]} to {ports[-1]} (last: {last}); MASTER_ADDR and MASTER_PORT must be those of rank 0's host",
                (0,),
            )
        time.sleep(_RETRY_S)


def _await_welcome(connection: _Messages, deadline: float, timeout: float) -> Mapping[str, Any]:
    """Wait until all ranks have come."""
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
            raise PeerFailure(f"rank 0 is gone, the control connection to it has ended: {error}", (0,)) from None
        match kind:
            case "welcome":
                connection.socket.settimeout(None)
                welcome: Mapping[str, Any] = content
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
