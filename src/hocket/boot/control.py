"""The control connection of a rank, in jobs on several hosts: it reports the end of other ranks, for example.

`hocket.boot.joining` opens it; the server is `hocket.boot.control_server`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import queue
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hocket import _native
from hocket.boot.connecting import Place
from hocket.boot.helper import RelayTask, start_helper
from hocket.boot.messages import MOST_TEXT, TO_RANK, decode, encode
from hocket.boot.sealed import MOST_NBYTES, ProtocolError, RankEnd
from hocket.errors import CommTimeout, PeerFailure, ResourceExhausted


@dataclass(frozen=True)
class Member:
    """One rank of the job, as other ranks see it.

    Args:
        host: identity of its host; equal for ranks that can share memory.
        address: address for connections from other hosts.
        local_rank: its number among the ranks of its host.
        place: host name and pid, for messages.
    """

    host: str
    address: str
    local_rank: int
    place: str


class ControlConnection:
    """This rank's connection to the control server, after all ranks have joined.

    Args:
        connection: connection to the server.
        members: all ranks of the job.
        nonce: random text of the server, equal on all ranks; keys are derived from it.
    """

    def __init__(self, connection: ControlMessages, members: Sequence[Member], nonce: str) -> None:
        self.members = members
        self.native = _native.Control([member.place for member in members])
        self.object_key = connection.place.secret.derive(
            b"hocket objects", connection.place.job.encode(), nonce.encode()
        )
        self._meeting_key = connection.place.secret.derive(b"hocket meeting", nonce.encode())
        self._connection = connection
        self._exchanged: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self._gathered: dict[int, queue.SimpleQueue[list[str]]] = {}  # by key, for gathers that this rank waits in
        self._dead: list[int] = []
        self._failed: dict[int, str] = {}  # reasons of ranks that run but could not start
        self._lost: str | None = None
        self._is_leaving = False
        _close_in_children(connection.socket)
        self._thread = threading.Thread(target=self._run, name="hocket control", daemon=True)
        self._thread.start()

    def exchange(self, text: str, timeout: float) -> list[str]:
        """Gather a text from every rank; called by all ranks, one call at a time.

        Returns:
            The texts of all ranks, by rank.

        Raises:
            PeerFailure: a rank has died.
            CommTimeout: some rank did not call in time.
        """
        text = _checked(text)
        self._send("exchange", text)
        with _native.control_event("wait for exchange", 0):
            return self._await(self._exchanged, range(len(self.members)), timeout)

    def gather(self, members: Sequence[int], name: str, text: str, timeout: float) -> list[str]:
        """Gather a text from some ranks; called by all of these ranks.

        Args:
            members: ranks in the job, in the same order on all members.
            name: name of this gather, equal on all members, used only once.
            text: text of this rank.
            timeout: seconds.

        Returns:
            The texts of all members, in their order.

        Raises:
            PeerFailure: a member has died.
            CommTimeout: some member did not call in time.
        """
        text = _checked(text)
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        gathered = self._gathered[key] = queue.SimpleQueue()
        try:
            self._send("gather", {"key": key, "members": list(members), "text": text})
            with _native.control_event("wait for gathered", 0):
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
            failed = [rank for rank in self._failed if rank in members]
            if failed:
                reasons = "; ".join(
                    f"rank {rank} ({self.members[rank].place}): {self._failed[rank]}" for rank in failed
                )
                raise PeerFailure(f"not all ranks could start: {reasons}", tuple(failed))
            dead = [rank for rank in self._dead if rank in members]
            if dead:
                places = "; ".join(f"rank {rank} ({self.members[rank].place}) died" for rank in dead)
                raise PeerFailure(f"{places} while the job was starting", tuple(dead))
            if self._lost is not None:
                raise PeerFailure(self._lost, (0,))
            if time.monotonic() > deadline:
                raise CommTimeout(f"timed out after {timeout:g} s: not all of ranks {list(members)} joined")

    def close(self, failure: BaseException | None = None) -> None:
        """Leave the job: after this call the end of this process is not a failure. Close communicators first.

        Args:
            failure: why this rank cannot join, if the job is still starting: then the other ranks stop waiting for it.
        """
        if self._is_leaving:
            return
        self._is_leaving = True
        self._send_notices()
        if failure is not None and not isinstance(failure, PeerFailure):  # the server reports those to the other ranks
            self._send("failed", _sendable(f"{type(failure).__name__}: {failure}")[:MOST_TEXT])
        self._send("bye", None)
        self._connection.socket.close()

    def meeting_name(self, host: str) -> str:
        """Return the name of the abstract unix socket at which the ranks of a host meet.

        Other users cannot guess it. Several "hosts" (HOCKET_HOST) on one machine have different names.
        """
        return f"hocket-{hmac.digest(self._meeting_key, host.encode(), 'sha256').hex()[:32]}"

    def connect_pmi(self) -> socket.socket:
        """Return a socket to a process manager for this rank's MPI library; a helper process relays its messages."""
        library_end, helper_end = socket.socketpair()
        with helper_end:
            place = self._connection.place
            address, port, *rest = self._connection.socket.getpeername()
            task = RelayTask(
                fds=[helper_end.fileno()],
                family=self._connection.socket.family,
                place=[address, *rest],
                port=port,
                job=place.job,
                size=place.size,
                rank=place.rank,
                secret=place.secret.key.hex(),
                tls=place.certificate,
            )
            start_helper("hocket.boot.pmi_relay", task).close()
        return library_end

    def _send(self, kind: str, content: object) -> None:
        try:
            self._connection.send(kind, content)
        except OSError as error:
            self._note_lost(error)

    def _send_notices(self) -> None:
        for notice in self.native.take_notices():
            if "text" in notice:
                notice["text"] = _sendable(notice["text"])[:MOST_TEXT]
            self._send(notice.pop("what"), notice)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._connection.socket, select.POLLIN)
        poll.register(self.native.fileno(), select.POLLIN)
        try:
            messages = self._connection.take_rest()  # received together with the welcome
            while not self._is_leaving:
                for kind, content in messages:
                    self._take_in(kind, content)
                ready = {fd for fd, _ in poll.poll(500)}
                self._send_notices()
                messages = self._connection.receive() if ready - {self.native.fileno()} else []
        except Exception as error:  # a closed connection, or anything else that ends this thread, fails operations
            if not self._is_leaving:
                self._note_lost(error)

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
            case "failed":
                self._failed[content["rank"]] = content["text"]
                self.native.note_death(content["rank"])
            case "refused":
                raise ProtocolError(content)
            case "left":
                self.native.note_left(content["key"], content["rank"], content["seq"], content["history"])
            case "aborted":
                self.native.note_abort(content["key"], content["code"], content["text"], content["ranks"])
            case "tell":
                last, fingerprint, text, traits = self.native.report(content["key"], content["seq"]) or (0, 0, "", "")
                texts = {"text": text[:MOST_TEXT], "traits": traits[:MOST_TEXT]}
                self._send("report", {**content, "last": last, "fingerprint": fingerprint, **texts})
            case "trace":
                self._send("traced", {**content, "histories": self.native.histories(content["key"], content["seq"])})
            case "verdict":
                head = _native.mismatch_head(content["seq"], content["wanted"]) if content["wanted"] else ""
                mismatch = head + content["mismatch"]
                self.native.note_verdict(content["key"], content["seq"], content["behind"], mismatch)
            case _:
                raise ProtocolError(f"unexpected message {kind!r} after the start")

    def _note_lost(self, error: Exception) -> None:
        self._lost = f"lost the control connection to the host of rank 0 ({self.members[0].place}): {error}"
        self.native.note_lost(self._lost)


def _sendable(text: str) -> str:
    """Return a text without lone surrogates, which names that are not UTF-8 contain."""
    return text.encode(errors="backslashreplace").decode()


def _checked(text: str) -> str:
    """Return a text that can be sent; raise ResourceExhausted if it is longer than a message may be."""
    text = _sendable(text)
    nbytes = len(json.dumps(text))
    if nbytes > MOST_NBYTES // 8:
        raise ResourceExhausted(f"a rank may send at most {MOST_NBYTES // 8} bytes to others at start-up, not {nbytes}")
    return text


def _close_in_children(connection: socket.socket) -> None:
    """Close the connection in forked children: a child that outlives this process would hide its death."""
    reference = weakref.ref(connection)

    def close() -> None:
        inherited = reference()
        if inherited is not None:
            inherited.close()

    os.register_at_fork(after_in_child=close)


class ControlMessages:
    """Messages over an authenticated connection to the server."""

    def __init__(self, connection: socket.socket, end: RankEnd, place: Place) -> None:
        self.socket = connection
        self.place = place
        self.end = end
        self._lock = threading.Lock()  # protects `end`: one thread reads, others send
        self._received: deque[tuple[str, Any]] = deque()

    def send(self, kind: str, content: object) -> None:
        message = encode(kind, content)
        with _native.control_event(f"send {kind}", len(message)), self._lock:
            self.end.send(message)
            self._flush()

    def receive(self) -> list[tuple[str, Any]]:
        """Read once and return the complete messages as (kind, content).

        Raises:
            OSError, ProtocolError: the connection was closed, or a message is invalid.
        """
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("it was closed")
        with self._lock:
            messages = self.end.take_in(data)
            if self.end.outgoing:  # TLS may have to answer
                self._flush()
        return [self._decode(message) for message in messages]

    def receive_one(self) -> tuple[str, Any]:
        """Return one message; the next calls return messages received together with it."""
        while not self._received:
            self._received.extend(self.receive())
        return self._received.popleft()

    def take_rest(self) -> list[tuple[str, Any]]:
        """Return the messages that were received but not yet returned."""
        rest, self._received = list(self._received), deque()
        return rest

    def _decode(self, message: bytes) -> tuple[str, Any]:
        kind, content = decode(message, TO_RANK, self.place.size)
        # A moment: when it began to arrive is not known.
        with _native.control_event(f"receive {kind}", len(message)):
            return kind, content

    def _flush(self) -> None:
        self.socket.sendall(self.end.outgoing)
        self.end.outgoing.clear()
