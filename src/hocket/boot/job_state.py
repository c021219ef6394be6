"""The state of the control server, and the messages that it sends; has no sockets.

From a rank: hello, exchange, gather, aborted, left, stalled, issued, report, traced, failed, bye. To a rank: refused,
awaited, missing, welcome, exchange, gathered, gone, failed, aborted, left, tell, trace, verdict
(`hocket.boot.messages`). A connection that ends without bye means that the rank died; "failed" has the reason why a
running rank cannot join.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

NAMED_AFTER_S = 10.0
"""Seconds of waiting at start-up before the missing ranks are named."""
_ANSWER_S = 1.0  # ranks that do not answer within this time count as behind
_MOST_REMEMBERED = 4096  # entries in each table that ranks can fill

K = TypeVar("K")
V = TypeVar("V")


@dataclass
class _Rank:
    hello: Mapping[str, Any]
    address: str
    own_address: str
    exchanged: str | None = None
    has_left: bool = False


@dataclass
class _Question:
    """A query: what did the members of a communicator issue as operation `seq`?"""

    key: int
    seq: int
    members: list[int]
    deadline_s: float
    reports: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def verdict(self) -> dict[str, Any]:
        """Return which ranks (of the communicator) are behind, and what the members issued if that differs."""
        issued: dict[int, list[int]] = {}
        of_one: dict[int, Mapping[str, Any]] = {}
        behind = []
        for rank, job_rank in enumerate(self.members):
            report = self.reports.get(job_rank)
            if report is None or report["last"] < self.seq:
                behind.append(rank)
            elif report["fingerprint"]:
                issued.setdefault(report["fingerprint"], []).append(rank)
                of_one.setdefault(report["fingerprint"], report)
        mismatch, traits = "", []
        if len(issued) > 1:
            groups = (f"{_ranks_text(ranks)}: {of_one[each]['text']}" for each, ranks in issued.items())
            mismatch, traits = "; ".join(groups), [report["traits"] for report in of_one.values()]
        return {"key": self.key, "seq": self.seq, "behind": behind, "mismatch": mismatch, "wanted": traits}


@dataclass
class _Trace:
    """A query: which operation before `seq` was the first that the members of a communicator issued differently?"""

    seq: int
    members: list[int]
    histories: dict[int, list[int]] = field(default_factory=dict)


class JobState:
    """The state of one job.

    Args:
        size: number of ranks of the job.
        timeout_s: seconds in which all ranks must join.
        send: called with a rank, and the kind and content of a message for it.
    """

    def __init__(self, size: int, timeout_s: float, send: Callable[[int, str, object], None]) -> None:
        self._size = size
        self._send = send
        self._start_deadline_s = time.monotonic() + timeout_s
        self._names_at_s: float | None = time.monotonic() + NAMED_AFTER_S
        self._ranks: dict[int, _Rank] = {}
        self._has_begun = False  # rank 0 has joined
        self._is_abandoned = False
        self._refusal: str | None = None  # why the job cannot start
        self.is_complete = False
        """Whether all ranks have joined."""
        self.is_closed = False
        """Whether no further rank can join: all have joined, and one has left."""
        self._gathers: dict[int, dict[int, str]] = {}  # by key and rank
        self._questions: dict[tuple[int, int], _Question] = {}
        self._aborted: dict[int, None] = {}
        self._traces: dict[int, _Trace] = {}
        self._histories: dict[tuple[int, int], dict[int, int]] = {}  # by communicator and place in its issue order

    @property
    def is_over(self) -> bool:
        """Whether all ranks have left, or some did not join in time."""
        is_late = not self.is_complete and time.monotonic() > self._start_deadline_s
        return is_late or self._is_abandoned or (self._has_begun and not self._ranks)

    def note_owner_end(self) -> None:
        """Note that the process that started this server has ended; if rank 0 has not joined, the job cannot start."""
        if not self._has_begun:
            self._is_abandoned = True
            self._send_all("gone", 0)

    def next_timeout_s(self) -> float | None:
        """Return the seconds until `handle_timeouts` is due; None: never."""
        deadlines = [each.deadline_s for each in self._questions.values()]
        if not self.is_complete:
            deadlines.append(min(self._start_deadline_s, self._names_at_s or self._start_deadline_s))
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def handle_timeouts(self) -> None:
        """Send the messages that are due."""
        now = time.monotonic()
        missing = [] if self.is_complete else [rank for rank in range(self._size) if rank not in self._ranks]
        if missing and now > self._start_deadline_s:
            self._send_all("missing", missing)
        if self._names_at_s is not None and now >= self._names_at_s:
            self._names_at_s = None
            if missing and 0 not in missing:
                self._send(0, "awaited", missing)
        for place, question in list(self._questions.items()):
            if len(question.reports) == len(question.members) or now > question.deadline_s:
                del self._questions[place]
                self._send_to(question.members, "verdict", question.verdict())

    def is_there(self, rank: int) -> bool:
        """Whether a rank has joined."""
        return rank in self._ranks

    def welcome(self, rank: int, hello: Mapping[str, Any], address: str, own_address: str) -> str | None:
        """Let a rank join; return None, or the reason for a refusal.

        Args:
            rank: number of the rank.
            hello: content of its hello message.
            address, own_address: addresses of its end and of our end of the connection.
        """
        if self.is_complete:
            return f"rank {rank} is too late: all {self._size} ranks of this job have already joined"
        reason = self._refusal or self._contradiction(rank, hello)
        if reason is not None:
            self.refuse(reason)
            return reason
        self._has_begun |= rank == 0
        self._ranks[rank] = _Rank(hello, address, own_address)
        if len(self._ranks) == self._size:
            self.is_complete = True
            addresses = self._addresses()
            facts = [{**each.hello, "address": addresses[number]} for number, each in sorted(self._ranks.items())]
            self._send_all("welcome", {"nonce": os.urandom(16).hex(), "members": facts})
        return None

    def _contradiction(self, rank: int, hello: Mapping[str, Any]) -> str | None:
        if hello["size"] != self._size:
            return f"rank {rank} has {hello['size']} as the number of ranks, but rank 0 has {self._size}"
        if rank in self._ranks:
            return f"two processes have the same rank {rank}"
        for number, other in self._ranks.items():
            if hello["version"] != other.hello["version"]:
                return (
                    f"rank {number} has hocket {other.hello['version']}, rank {rank} has {hello['version']}: install "
                    "one version on all hosts"
                )
        return None

    def refuse(self, reason: str) -> None:
        """Notify all present and later ranks that the job cannot start; no effect after the start."""
        if not self.is_complete:
            self._refusal = reason
            self._send_all("refused", reason)

    def _addresses(self) -> dict[int, str]:
        """Return the address of each rank: that of its connection, or, on this host, our address as seen by others."""
        own = [each.own_address for each in self._ranks.values()]
        outside = next((address for address in own if not _is_loopback(address)), own[0])
        return {rank: outside if _is_loopback(each.address) else each.address for rank, each in self._ranks.items()}

    def take_in(self, rank: int, kind: str, content: Any) -> None:
        """Handle a message of a rank that has joined; `messages` has checked its form."""
        getattr(self, f"_on_{kind}")(rank, content)

    def _on_exchange(self, rank: int, text: str) -> None:
        self._ranks[rank].exchanged = text
        texts = [each.exchanged for _, each in sorted(self._ranks.items())]
        if None not in texts and len(texts) == self._size:
            for each in self._ranks.values():
                each.exchanged = None
            self._send_all("exchange", texts)

    def _on_gather(self, rank: int, content: Mapping[str, Any]) -> None:
        key, members = content["key"], content["members"]
        texts = _remember(self._gathers, key, self._gathers.get(key, {}))
        texts[rank] = content["text"]
        if all(member in texts for member in members):
            del self._gathers[key]
            self._send_to(members, "gathered", {"key": key, "texts": [texts[member] for member in members]})

    def _on_aborted(self, rank: int, notice: Mapping[str, Any]) -> None:
        if (
            rank in notice["members"] and notice["key"] not in self._aborted
        ):  # all members of one communicator abort when one of them dies
            _remember(self._aborted, notice["key"], None)
            aborted = {name: notice[name] for name in ("key", "code", "text", "ranks")}
            self._send_to(notice["members"], "aborted", aborted, but=rank)

    def _on_left(self, rank: int, notice: Mapping[str, Any]) -> None:
        if rank in notice["members"]:
            left = {name: notice[name] for name in ("key", "seq", "history")}
            self._send_to(notice["members"], "left", {**left, "rank": notice["members"].index(rank)}, but=rank)

    def _on_stalled(self, rank: int, notice: Mapping[str, Any]) -> None:
        self._ask(notice["key"], notice["seq"], notice["members"])

    def _ask(self, key: int, seq: int, members: list[int]) -> None:
        if (key, seq) not in self._questions:
            _remember(self._questions, (key, seq), _Question(key, seq, members, time.monotonic() + _ANSWER_S))
            self._send_to(members, "tell", {"key": key, "seq": seq})

    def _on_issued(self, rank: int, notice: Mapping[str, Any]) -> None:
        """Compare what the members issued so far: libraries may compute wrong sums before a mismatch stalls them."""
        key, seq, members = notice["key"], notice["seq"], notice["members"]
        histories = _remember(self._histories, (key, seq), self._histories.get((key, seq), {}))
        histories[rank] = notice["history"]
        if len(histories) < len(members):
            return
        del self._histories[key, seq]
        if len(set(histories.values())) > 1:
            _remember(self._traces, key, _Trace(seq, members))
            self._send_to(members, "trace", {"key": key, "seq": seq})

    def _on_traced(self, rank: int, traced: Mapping[str, Any]) -> None:
        """Find the first operation that differs, and query what it was."""
        trace = self._traces.get(traced["key"])
        if trace is None or trace.seq != traced["seq"]:
            return
        trace.histories[rank] = traced["histories"]
        if len(trace.histories) < len(trace.members):
            return
        del self._traces[traced["key"]]
        places = enumerate(zip(*trace.histories.values(), strict=False), trace.seq + 1 - len(traced["histories"]))
        different = [seq for seq, histories in places if all(histories) and len(set(histories)) > 1]
        if different:
            self._ask(traced["key"], different[0], trace.members)
        else:  # it is older than all histories
            mismatch = f"before operation number {trace.seq} the members issued different operations"
            verdict = {"key": traced["key"], "seq": trace.seq, "behind": [], "mismatch": mismatch, "wanted": []}
            self._send_to(trace.members, "verdict", verdict)

    def _on_report(self, rank: int, report: Mapping[str, Any]) -> None:
        question = self._questions.get((report["key"], report["seq"]))
        if question is not None and rank in question.members:
            question.reports[rank] = report

    def _on_failed(self, rank: int, text: str) -> None:
        self._ranks[rank].has_left = True
        self._send_to([each for each in self._ranks if each != rank], "failed", {"rank": rank, "text": text})

    def _on_bye(self, rank: int, _content: object) -> None:
        self._ranks[rank].has_left = True

    def note_end(self, rank: int) -> None:
        """Note that the connection of a rank that had joined has ended."""
        gone = self._ranks.pop(rank)
        self.is_closed |= self.is_complete
        if not gone.has_left:
            self._send_all("gone", rank)

    def _send_to(self, members: Iterable[int], kind: str, content: object, *, but: int = -1) -> None:
        for member in members:
            if member in self._ranks and member != but:
                self._send(member, kind, content)

    def _send_all(self, kind: str, content: object) -> None:
        self._send_to(list(self._ranks), kind, content)


def _remember(known: dict[K, V], key: K, value: V) -> V:
    """Add an entry to a table and drop the oldest if there are too many; return the value."""
    known[key] = value
    if len(known) > _MOST_REMEMBERED:
        del known[next(iter(known))]
    return value


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _ranks_text(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
