"""The first host of a recorded run: agents of other hosts compare their clock with it and send it what they saved."""

from __future__ import annotations

import os
import re
import socket
import threading
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from time import monotonic

from hocket.boot.sealed import ProtocolError, ServerEnd
from hocket.boot.secret import Secret, find_secret
from hocket.boot.sockets import keep_alive, resolve
from hocket.boot.tls import TlsFiles, TlsServer
from hocket.clock import ClockServer, clock_origin
from hocket.errors import InvalidArgument
from hocket.observe.host_views import add_host, is_watched, keep_view, remove_host
from hocket.observe.sealed_stream import PURPOSE, SealedStream
from hocket.observe.sparse_copy import write_sparsely

SILENCE_S = 30.0
"""An agent that has sent nothing for so long is lost; it sends something every few seconds."""
_PROOF_S = 10.0
_ANSWER_S = 10.0
_LOOK_S = 0.2
_LOOK_EVERY_S = 0.5
_MOST_UNPROVEN = 64
_MOST_HOSTS = 4096
_MOST_FILE_NBYTES = 1 << 40
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}")
_RESOLVING_S = 30.0


def parse_address(text: str, *, needs_port: bool) -> tuple[str, int]:
    """Return host and port of a text such as ``10.0.0.1:29777`` or ``[fe80::1]:29777``.

    Raises:
        InvalidArgument: the text is not an address, or the port is missing.
    """
    found = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", text)
    port = int(found[3] or 0) if found else -1
    if not found or port > 65535 or (needs_port and port == 0):
        raise InvalidArgument(f"an address such as 10.0.0.1:29777 is needed, not {text!r}")
    return found[1] or found[2], port


class HostCollector:
    """Accepts agents of other hosts, in threads; a context manager.

    Args:
        address: name or address by which other hosts reach this one.
        port: to listen on; 0: any free one.
        target: folder of the run; each other host gets a folder in it.
        memory: folder of this host's agent, where what other hosts do now is kept for those who look.

    Attributes:
        name: address and port, as other hosts need them.
        num_kept: how many other hosts have sent all that they recorded.
        problems: what went wrong with other hosts.

    Raises:
        InvalidArgument: this host does not have the address, or the port is in use.
        BootstrapMismatch: the user's secret cannot be read.
    """

    def __init__(self, address: str, port: int, target: Path, memory: Path) -> None:
        self._target = target
        self._memory = memory
        self._secret = find_secret()
        self.problems: list[str] = []
        self._lock = threading.Lock()
        self._num_hosts = 0
        self._num_unproven = 0
        self._open: dict[threading.Thread, str] = {}
        """Of each host that has not sent everything."""
        self._stops = threading.Event()
        self._gives_up = threading.Event()
        self._tls = _tls_server()
        try:
            interface = resolve(address, _RESOLVING_S)[0]
            self._listener = socket.create_server(interface.at(port), family=interface.family)
        except OSError as error:
            raise InvalidArgument(f"cannot listen at {address}, port {port}: {error}") from None
        try:
            self._clock = ClockServer(clock_key(self._secret), (interface.place[0], 0))
        except BaseException:
            self._listener.close()
            raise
        self.name = f"{f'[{address}]' if ':' in address else address}:{self._listener.getsockname()[1]}"
        self.num_kept = 0
        self._thread = threading.Thread(target=self._accept, name="hocket-hosts", daemon=True)
        self._thread.start()

    def __enter__(self) -> HostCollector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_for_hosts(self) -> None:
        """Wait for all hosts that have joined, as long as they show that they run; Ctrl-C ends the wait."""
        self._stops.set()
        self._thread.join(_ANSWER_S)
        try:
            while True:
                with self._lock:
                    thread = next(iter(self._open), None)
                if thread is None:
                    return
                thread.join(_LOOK_S)
        except KeyboardInterrupt:
            with self._lock:
                self.problems += [f"host {name}: not waited for, because of Ctrl-C" for name in self._open.values()]

    def close(self) -> None:
        """Stop listening; agents that have not sent everything keep it."""
        self._stops.set()
        self._gives_up.set()
        self._listener.close()
        self._clock.close()

    def _accept(self) -> None:
        self._listener.settimeout(_LOOK_S)
        while not self._stops.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                if self._stops.wait(_LOOK_S):  # out of descriptors, or closed
                    return
                continue
            with self._lock:
                is_taken = self._num_unproven < _MOST_UNPROVEN and self._num_hosts < _MOST_HOSTS
                self._num_unproven += is_taken
            if not is_taken:
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="hocket-host", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            tls = self._tls.begin() if self._tls else None
            stream = _authenticated(connection, ServerEnd(self._secret, PURPOSE, tls))
        except (OSError, ProtocolError):
            connection.close()  # a stranger
            return
        finally:
            with self._lock:
                self._num_unproven -= 1
        name, folder = "?", None
        try:
            kind, content = stream.receive_object(_ANSWER_S)
            if kind != "join" or not isinstance(content, str):
                raise ProtocolError("an agent must say first from which host it is")
            name = re.sub(r"[^A-Za-z0-9.-]", "-", content)[:64] or "unnamed"
            with self._lock:
                self._num_hosts += 1
                folder = self._target / f"host-{self._num_hosts}-{name}"
                self._open[threading.current_thread()] = name
            origin = clock_origin()
            welcome = {"clock_port": self._clock.address[1], "boot_id": origin.boot_id, "offset_s": origin.offset_s}
            stream.send_object("welcome", welcome, _ANSWER_S)
            self._receive_files(stream, folder)
        except (OSError, ProtocolError) as error:
            self.problems.append(f"host {name}: {error}; what it recorded stays there")
            if folder is not None:
                rmtree(_part_of(folder), ignore_errors=True)
        finally:
            stream.close()
            if folder is not None:
                remove_host(self._memory, folder.name)
            with self._lock:
                self._open.pop(threading.current_thread(), None)

    def _receive_files(self, stream: SealedStream, folder: Path) -> None:
        part = _part_of(folder)
        part.mkdir()
        add_host(self._memory, folder.name)
        while True:
            kind, content = self._next(stream)
            if kind == "view":
                keep_view(self._memory, folder.name, content)
            elif kind == "file":
                name, nbytes = _checked_file(content)
                with (part / name).open("xb") as file:
                    while nbytes > 0:
                        data = stream.receive(SILENCE_S)
                        if not 0 < len(data) <= nbytes:
                            raise ProtocolError("a file has another size than was announced")
                        write_sparsely(file, data)
                        nbytes -= len(data)
                    file.truncate()
            elif kind == "end":
                os.rename(part, folder)
                self.num_kept += 1
                with suppress(OSError):  # the agent has left: it keeps its copy
                    stream.send_object("kept", None, _ANSWER_S)
                return
            elif kind != "alive":
                raise ProtocolError(f"unknown message {kind[:40]!r}")

    def _next(self, stream: SealedStream) -> tuple[str, object]:
        deadline_s = monotonic() + SILENCE_S
        while True:
            if self._gives_up.is_set():
                raise OSError("it was not waited for")
            if is_watched(self._memory) and monotonic() - stream.asked_s > _LOOK_EVERY_S:
                stream.asked_s = monotonic()
                stream.send_object("look", None, _ANSWER_S)
            try:
                return stream.receive_object(min(_LOOK_S, deadline_s - monotonic()))
            except TimeoutError:
                if monotonic() >= deadline_s:
                    raise TimeoutError(f"nothing was heard of it for {SILENCE_S:.0f} s") from None


def _part_of(folder: Path) -> Path:
    """Where a host's files lie until all have come."""
    return folder.with_name("part-of-" + folder.name)


def clock_key(secret: Secret) -> bytes:
    """Return the key of the clock server."""
    return secret.derive(b"hocket observe clock")


def _tls_server() -> TlsServer | None:
    certificate, key = os.environ.get("HOCKET_TLS_CERT"), os.environ.get("HOCKET_TLS_KEY")
    return TlsFiles(certificate, key).server_side() if certificate else None


def _checked_file(content: object) -> tuple[str, int]:
    if isinstance(content, list) and len(content) == 2:
        name, nbytes = content
        is_name = isinstance(name, str) and _FILE_NAME.fullmatch(name) is not None
        if is_name and type(nbytes) is int and 0 <= nbytes <= _MOST_FILE_NBYTES:
            return name, nbytes
    raise ProtocolError("a file needs a name without special characters, and a size")


def _authenticated(connection: socket.socket, end: ServerEnd) -> SealedStream:
    deadline_s = monotonic() + _PROOF_S
    keep_alive(connection)
    while True:
        left_s = deadline_s - monotonic()
        if left_s <= 0:
            raise TimeoutError("it did not authenticate in time")
        connection.settimeout(left_s)
        connection.sendall(end.outgoing)
        end.outgoing.clear()
        if end.is_proven:
            return SealedStream(connection, end)
        data = connection.recv(1 << 16)
        if not data:
            raise ConnectionError("it closed the connection")
        if end.take_in(data):
            raise ProtocolError("it sent a message before authentication was complete")
