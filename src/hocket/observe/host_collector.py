"""The first host of a recorded run: agents of other hosts compare their clock with it and send it what they saved."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from hocket.boot.sealed import ProtocolError, ServerEnd
from hocket.boot.secret import Secret, find_secret
from hocket.boot.sockets import keep_alive, resolve
from hocket.boot.tls import TlsFiles, TlsServer
from hocket.clock import ClockServer, clock_origin
from hocket.errors import InvalidArgument
from hocket.observe.growth_pace import GrowthPace
from hocket.observe.host_folder import HostFolder, checked_description, checked_growth, checked_head
from hocket.observe.host_views import add_host, is_watched, keep_view, remove_host
from hocket.observe.recorder_head import BLOCK_NBYTES
from hocket.observe.saved import is_followed
from hocket.observe.sealed_stream import PURPOSE, VERSION, SealedStream

SILENCE_S = 30.0
"""An agent that has sent nothing for so long is lost, and one whose connection broke so long ago."""
_PROOF_S = 10.0
_ANSWER_S = 10.0
_LOOK_S = 0.2
_FOLLOWED_TURN_S, _TURN_OF_HOST_S, _MOST_TURN_S = 0.05, 0.0005, 1.0
_LOOK_EVERY_S = 0.5
_MOST_UNPROVEN = 64
_MOST_HOSTS = 4096
_MOST_IDENT = 64
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


@dataclass
class _Agent:
    """An agent of another host, and who serves it."""

    folder: HostFolder
    stream: SealedStream
    thread: threading.Thread
    problem: str = ""
    """Why its last connection ended."""
    is_done: bool = False
    broken_s: float | None = None
    """When its connection broke, by `time.monotonic`; None: it is connected, or lost: it was silent for long, or what
    it sent was refused. It may come again, but is not waited for."""


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
        self._agents: dict[str, _Agent] = {}
        """By the random text that each says when it joins."""
        self._open: dict[threading.Thread, str] = {}
        """Of each host that has not sent everything."""
        self._stops = threading.Event()
        self._is_late = threading.Event()
        """Set when the command of this host has ended: only hosts that have joined before may come again."""
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
        """Wait for all hosts that have joined, as long as they show that they run; Ctrl-C ends the wait.

        A host whose connection breaks has `SILENCE_S` to come again. Hosts that have not joined before are refused.
        """
        self._is_late.set()
        try:
            while True:
                with self._lock:
                    thread = next(iter(self._open), None)
                    may_come_again = self._may_come_again()
                if thread is not None:
                    thread.join(_LOOK_S)
                elif may_come_again:
                    self._stops.wait(_LOOK_S)
                else:
                    return
        except KeyboardInterrupt:
            with self._lock:
                self.problems += [f"host {name}: not waited for, because of Ctrl-C" for name in self._open.values()]

    def _may_come_again(self) -> bool:
        now_s = monotonic()
        times_s = [each.broken_s for each in self._agents.values() if each.broken_s is not None]
        return any(now_s < broken_s + SILENCE_S for broken_s in times_s)

    def close(self) -> None:
        """Stop listening; agents that have not sent everything keep it."""
        self._stops.set()
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
                is_taken = self._num_unproven < _MOST_UNPROVEN
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
        name, agent = "?", None
        try:
            kind, content = stream.receive_object(_ANSWER_S)
            name, ident = _joined_host(kind, content, stream)
            agent = self._enter(name, ident, stream)
            if agent is None:
                return
            known = json.dumps(agent.folder.known_sizes()).encode()
            origin = clock_origin()
            welcome = {
                "clock_port": self._clock.address[1],
                "boot_id": origin.boot_id,
                "offset_s": origin.offset_s,
                "known_nbytes": len(known),
            }
            stream.send_object("welcome", welcome, _ANSWER_S)
            stream.send_content(io.BytesIO(known), len(known), _ANSWER_S)
            self._receive(stream, agent.folder)
            agent.is_done = True
        except (OSError, ProtocolError) as error:
            rest = agent.folder.abandon() if agent is not None else "what it recorded stays there"
            problem = f"host {name}: {error}; {rest}"
            with self._lock:
                self.problems.append(problem)
                if agent is not None:
                    agent.problem = problem
                    is_lost = isinstance(error, TimeoutError | ProtocolError)
                    agent.broken_s = None if is_lost else monotonic()
        finally:
            stream.close()
            if agent is not None:
                remove_host(self._memory, agent.folder.folder.name)
            with self._lock:
                self._open.pop(threading.current_thread(), None)

    def _enter(self, name: str, ident: str, stream: SealedStream) -> _Agent | None:
        """Return an agent that joins, or one whose connection was broken and that comes again; None: not now."""
        own = threading.current_thread()
        with self._lock:
            agent = self._agents.get(ident)
            refusal = self._refusal(name) if agent is None else ""
            if not refusal:
                self._open[own] = name
            if agent is None and not refusal:
                self._num_hosts += 1
                folder = HostFolder(self._target / f"host-{self._num_hosts}-{name}")
                agent = self._agents[ident] = _Agent(folder, stream, own)
                return agent
        if agent is None:
            raise _refused(refusal, stream)
        before = agent.thread
        agent.stream.shut_down()  # it may not have noticed yet
        before.join(_ANSWER_S)
        with self._lock:
            if before.is_alive() or agent.thread is not before or agent.is_done:
                return None
            self.problems.remove(agent.problem)
            agent.stream, agent.thread, agent.broken_s = stream, own, None
            return agent

    def _refusal(self, name: str) -> str:
        """Why a host that has not joined before may not join; "": it may."""
        if self._is_late.is_set():
            return f"host {name} joins too late: the command of the first host has ended"
        if self._num_hosts >= _MOST_HOSTS:
            return f"host {name} is one too many: {_MOST_HOSTS} hosts have joined, the most that a run can have"
        return ""

    def _receive(self, stream: SealedStream, folder: HostFolder) -> None:
        """Take what the host sends while the run goes on, and all that is left at its end."""
        host, pace = folder.folder.name, GrowthPace()
        add_host(self._memory, host)
        while True:
            kind, content = self._next(stream, pace, folder)
            if kind == "view":
                keep_view(self._memory, host, content)
            elif kind == "description":
                nbytes = checked_description(content)
                pace.take_other(nbytes)
                folder.describe(nbytes, stream)
            elif kind == "head":
                head = checked_head(content)
                pace.take_other(len(head[-1]) * BLOCK_NBYTES)
                folder.patch_head(head, stream)
            elif kind == "growth":
                growth = checked_growth(content)
                pace.take(growth[-1])
                folder.grow(growth, stream)
            elif kind == "grown":
                pace.end_answer(monotonic(), has_more=content is True)
                if folder.is_full:
                    self._say_that_it_is_full(folder)
            elif kind == "file":
                pace.end()
                folder.add(content, stream)
            elif kind == "end":
                folder.finish()
                self.num_kept += 1
                with suppress(OSError):  # the agent has left: it keeps its copy
                    stream.send_object("kept", None, _ANSWER_S)
                return
            elif kind != "alive":
                raise ProtocolError(f"unknown message {kind[:40]!r}")

    def _say_that_it_is_full(self, folder: HostFolder) -> None:
        problem = (
            f"{folder.folder.name}: it has very many files: {folder.most_live_files} were taken while the run went on, "
            "others come at its end"
        )
        with self._lock:
            if problem not in self.problems:
                self.problems.append(problem)

    def _next(self, stream: SealedStream, pace: GrowthPace, folder: HostFolder) -> tuple[str, object]:
        deadline_s = monotonic() + SILENCE_S
        while True:
            if self._stops.is_set():
                raise OSError("it was not waited for")
            if is_watched(self._memory) and monotonic() - stream.asked_s > _LOOK_EVERY_S:
                stream.asked_s = monotonic()
                stream.send_object("look", None, _ANSWER_S)
            turn_s = self._ask_for_growth(stream, pace, folder.most_live_files)
            try:
                return stream.receive_object(min(turn_s, deadline_s - monotonic()))
            except TimeoutError:
                if monotonic() >= deadline_s:
                    raise TimeoutError(f"nothing was heard of it for {SILENCE_S:.0f} s") from None

    def _ask_for_growth(self, stream: SealedStream, pace: GrowthPace, most_files: int) -> float:
        """Ask if it is time; return the seconds after which it may be time again."""
        with self._lock:
            num_hosts = len(self._open)
        is_run_followed = is_followed(self._target)
        if nbytes := pace.ask(monotonic(), num_hosts, is_followed=is_run_followed):
            asked = {"most_nbytes": nbytes, "most_files": most_files, "is_followed": is_run_followed}
            stream.send_object("grow", asked, _ANSWER_S)
        return max(_FOLLOWED_TURN_S if is_run_followed else _LOOK_S, min(num_hosts * _TURN_OF_HOST_S, _MOST_TURN_S))


def _joined_host(kind: str, content: object, stream: SealedStream) -> tuple[str, str]:
    """Return the name of a host that joins, and what its agent calls itself.

    Raises:
        ProtocolError: the message is no valid join request, or the agent runs another version of the protocol.
    """
    if kind != "join" or not isinstance(content, str | dict):
        raise ProtocolError("an agent must say first from which host it is")
    host, version = (content, 1) if isinstance(content, str) else (content.get("host"), content.get("version"))
    if not isinstance(host, str) or type(version) is not int:
        raise ProtocolError("an agent must say first from which host it is, and its version")
    name = re.sub(r"[^A-Za-z0-9.-]", "-", host)[:64] or "unnamed"
    if version != VERSION:
        text = f"the agent of host {name} sends messages of version {version}, the first host reads version {VERSION}"
        raise _refused(f"{text}: install the same hocket on all hosts", stream)
    ident = content.get("agent") if isinstance(content, dict) else None
    if not isinstance(ident, str) or not 0 < len(ident) <= _MOST_IDENT:
        raise ProtocolError("an agent must say by which text it is known")
    return name, ident


def _refused(text: str, stream: SealedStream) -> ProtocolError:
    """Tell a host why it may not join; return the error to raise."""
    with suppress(OSError):
        stream.send_object("refused", text, _ANSWER_S)
    return ProtocolError(text)


def clock_key(secret: Secret) -> bytes:
    """Return the key of the clock server."""
    return secret.derive(b"hocket observe clock")


def _tls_server() -> TlsServer | None:
    certificate, key = os.environ.get("HOCKET_TLS_CERT"), os.environ.get("HOCKET_TLS_KEY")
    return TlsFiles(certificate, key).server_side() if certificate else None


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
