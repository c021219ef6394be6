"""The server of a job's control connections: what ranks on several hosts tell each other besides their data.

Run as a program, ``python control_server.py FD SIZE JOB TIMEOUT``: serves SIZE ranks at the listening socket FD until
all of them have gone. It is a process of its own because it has to outlive every rank, rank 0 too.

The protocol is one JSON object a line, with one key that says what it is. From a rank: hello, exchange, aborted, left,
stalled, issued, report, traced, bye. To a rank: hello (with the name of the job that this is the server of), refused,
missing, welcome, exchange, gone, aborted, left, tell, trace, verdict. A connection that ends without bye is a death.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_SEND_S = 5.0
_ANSWER_S = 1.0  # ranks that have not said within that time what they issued are taken to be behind


@dataclass(eq=False)
class _Rank:
    connection: socket.socket
    number: int = -1  # until it said hello
    hello: Mapping[str, Any] = field(default_factory=dict)
    pending: bytes = b""
    exchanged: str | None = None
    has_left: bool = False
    is_gone: bool = False


@dataclass
class _Question:
    """What did the members of a communicator issue as operation `seq`?"""

    key: int
    seq: int
    members: list[int]
    deadline_s: float
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)

    def verdict(self) -> dict[str, Any]:
        """Say who is behind, and what the members issued if that was not the same; ranks are the communicator's."""
        issued: dict[int, list[int]] = {}
        texts: dict[int, str] = {}
        behind = []
        for rank, job_rank in enumerate(self.members):
            report = self.reports.get(job_rank)
            if report is None or report["last"] < self.seq:
                behind.append(rank)
            elif report["fingerprint"]:
                issued.setdefault(report["fingerprint"], []).append(rank)
                texts.setdefault(report["fingerprint"], report["text"])
        mismatch = ""
        if len(issued) > 1:
            groups = "; ".join(f"{_ranks_text(ranks)}: {texts[each]}" for each, ranks in issued.items())
            mismatch = f"operation number {self.seq}: {groups}"
        return {"verdict": {"key": self.key, "seq": self.seq, "behind": behind, "mismatch": mismatch}}


@dataclass
class _Trace:
    """Where did the members of a communicator begin to differ, before operation `seq`?"""

    seq: int
    members: list[int]
    histories: dict[int, list[int]] = field(default_factory=dict)


class ControlServer:
    """The state of one job.

    Args:
        size: ranks of the job.
        job: its name, which the ranks know.
        timeout_s: seconds in which all ranks have to come.
    """

    def __init__(self, size: int, job: str, timeout_s: float) -> None:
        self._size = size
        self._job = job
        self._start_deadline_s = time.monotonic() + timeout_s
        self._ranks: dict[int, _Rank] = {}
        self._has_begun = False  # a rank of this job has come
        self._is_complete = False
        self._questions: dict[tuple[int, int], _Question] = {}
        self._aborted: set[int] = set()
        self._traces: dict[int, _Trace] = {}
        self._histories: dict[tuple[int, int], dict[int, int]] = {}  # by communicator and place in its issue order

    def serve(self, listener: socket.socket) -> None:
        """Serve until every rank that came has gone, or not all of them came in time."""
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            connected = 0
            while connected or not self._has_begun:
                for key, _ in selector.select(self._patience_s()):
                    if key.fileobj is listener:
                        connection = listener.accept()[0]
                        keep_alive(connection)
                        selector.register(connection, selectors.EVENT_READ, _Rank(connection))
                        connected += 1
                    elif not self._receive(key.data):
                        selector.unregister(key.fileobj)
                        connected -= 1
                        self._note_end(key.data)
                if not self._is_complete and time.monotonic() > self._start_deadline_s:
                    missing = [rank for rank in range(self._size) if rank not in self._ranks]
                    self._send_all({"missing": missing})
                    return
                self._close_questions()

    def _patience_s(self) -> float | None:
        deadlines = [each.deadline_s for each in self._questions.values()]
        if not self._is_complete:
            deadlines.append(self._start_deadline_s)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _receive(self, rank: _Rank) -> bool:
        """Take in what came; False at the end of the connection."""
        try:
            data = rank.connection.recv(1 << 16)
        except OSError:
            data = b""
        *lines, rank.pending = (rank.pending + data).split(b"\n")
        for line in lines:
            try:
                (what, content), *_ = json.loads(line).items()
                getattr(self, f"_on_{what}")(rank, content)
            except (ValueError, TypeError, KeyError, AttributeError):
                return False  # no rank of ours
        return bool(data)

    def _on_hello(self, rank: _Rank, hello: Mapping[str, Any]) -> None:
        is_ours = hello["job"] == self._job
        self._send(rank, {"hello": self._job})
        if not is_ours:
            return  # it goes on looking
        reason = None
        if hello["size"] != self._size:
            reason = f"rank {hello['rank']} says that the job has {hello['size']} ranks, rank 0 says {self._size}"
        elif hello["rank"] in self._ranks:
            reason = f"two processes say that they are rank {hello['rank']}"
        elif self._ranks and hello["version"] != (first := next(iter(self._ranks.values()))).hello["version"]:
            versions = first.hello["version"], hello["version"]
            reason = f"rank {first.number} has hocket {versions[0]}, rank {hello['rank']} has {versions[1]}"
        if reason is not None:
            self._send(rank, {"refused": reason})
            self._send_all({"refused": reason})
            return
        self._has_begun = True
        rank.number, rank.hello = hello["rank"], hello
        self._ranks[rank.number] = rank
        if len(self._ranks) == self._size:
            self._is_complete = True
            addresses = self._addresses()
            facts = [{**each.hello, "address": addresses[number]} for number, each in sorted(self._ranks.items())]
            self._send_all({"welcome": facts})

    def _addresses(self) -> dict[int, str]:
        """At which each rank can be reached: as its connection shows, or, on this host, as the others' ones show us."""
        peers = {rank: _address(each.connection.getpeername()) for rank, each in self._ranks.items()}
        own = [_address(each.connection.getsockname()) for each in self._ranks.values()]
        outside = next((address for address in own if not _is_loopback(address)), own[0])
        return {rank: outside if _is_loopback(address) else address for rank, address in peers.items()}

    def _on_exchange(self, rank: _Rank, text: str) -> None:
        rank.exchanged = text
        texts = [each.exchanged for _, each in sorted(self._ranks.items())]
        if None not in texts:
            for each in self._ranks.values():
                each.exchanged = None
            self._send_all({"exchange": texts})

    def _on_aborted(self, rank: _Rank, notice: Mapping[str, Any]) -> None:
        if notice["key"] not in self._aborted:  # all members of one communicator abort when one of them dies
            self._aborted.add(notice["key"])
            self._send_others(rank, notice["members"], {"aborted": notice})

    def _on_left(self, rank: _Rank, notice: Mapping[str, Any]) -> None:
        member = notice["members"].index(rank.number)
        left = {"key": notice["key"], "seq": notice["seq"], "history": notice["history"], "rank": member}
        self._send_others(rank, notice["members"], {"left": left})

    def _on_stalled(self, rank: _Rank, notice: Mapping[str, Any]) -> None:
        key, seq, members = notice["key"], notice["seq"], notice["members"]
        if (key, seq) in self._questions:
            return
        self._questions[key, seq] = _Question(key, seq, members, time.monotonic() + _ANSWER_S)
        self._send_others(None, members, {"tell": {"key": key, "seq": seq}})

    def _on_issued(self, rank: _Rank, notice: Mapping[str, Any]) -> None:
        """Compare what the members issued up to a place; libraries may do wrong sums for a while before they stall."""
        key, seq, members = notice["key"], notice["seq"], notice["members"]
        histories = self._histories.setdefault((key, seq), {})
        histories[members.index(rank.number)] = notice["history"]
        if len(histories) < len(members):
            return
        del self._histories[key, seq]
        if len(set(histories.values())) > 1:
            self._traces[key] = _Trace(seq, members)
            self._send_others(None, members, {"trace": {"key": key, "seq": seq}})

    def _on_traced(self, rank: _Rank, traced: Mapping[str, Any]) -> None:
        """Find the first operation that was not the same, and ask what it was."""
        trace = self._traces.get(traced["key"])
        if trace is None or trace.seq != traced["seq"]:
            return
        trace.histories[rank.number] = traced["histories"]
        if len(trace.histories) < len(trace.members):
            return
        del self._traces[traced["key"]]
        places = enumerate(zip(*trace.histories.values(), strict=True), trace.seq + 1 - len(traced["histories"]))
        different = [seq for seq, histories in places if all(histories) and len(set(histories)) > 1]
        if different:
            self._on_stalled(rank, {"key": traced["key"], "seq": different[0], "members": trace.members})
        else:  # so long ago that nobody knows any more what it was
            mismatch = f"before operation number {trace.seq} the members did not all issue the same"
            verdict = {"key": traced["key"], "seq": trace.seq, "behind": [], "mismatch": mismatch}
            self._send_others(None, trace.members, {"verdict": verdict})

    def _on_report(self, rank: _Rank, report: dict[str, Any]) -> None:
        question = self._questions.get((report["key"], report["seq"]))
        if question is not None:
            question.reports[rank.number] = report

    def _on_bye(self, rank: _Rank, _content: object) -> None:
        rank.has_left = True

    def _note_end(self, rank: _Rank) -> None:
        rank.is_gone = True
        rank.connection.close()
        if self._ranks.get(rank.number) is not rank:
            return
        if not self._is_complete:
            del self._ranks[rank.number]
        if not rank.has_left:
            self._send_all({"gone": rank.number})

    def _close_questions(self) -> None:
        now = time.monotonic()
        for place, question in list(self._questions.items()):
            if len(question.reports) == len(question.members) or now > question.deadline_s:
                del self._questions[place]
                self._send_others(None, question.members, question.verdict())

    def _send_others(self, sender: _Rank | None, members: Iterable[int], message: Mapping[str, Any]) -> None:
        for member in members:
            rank = self._ranks.get(member)
            if rank is not None and rank is not sender:
                self._send(rank, message)

    def _send_all(self, message: Mapping[str, Any]) -> None:
        self._send_others(None, list(self._ranks), message)

    def _send(self, rank: _Rank, message: Mapping[str, Any]) -> None:
        if rank.is_gone:
            return
        try:
            rank.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # it does not read, or has died: it is read from next, and taken for dead
            with contextlib.suppress(OSError):
                rank.connection.shutdown(socket.SHUT_RDWR)


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice within seconds that the other side's host does not answer any more."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 4)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 6000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(_SEND_S)


def _address(name: tuple[Any, ...]) -> str:
    return str(name[0]).removeprefix("::ffff:")


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _ranks_text(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def main() -> None:
    fd, size, job, timeout_s = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
    with socket.socket(fileno=fd) as listener:
        ControlServer(size, job, timeout_s).serve(listener)


if __name__ == "__main__":
    main()
