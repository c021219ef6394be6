"""Waits for the ranks of a job and ends those that outlive another one's failure."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hocket.boot.job_result import RankOutcome
from hocket.boot.rank_process import RankProcess
from hocket.boot.signals import SignalInbox
from hocket.boot.tagged_output import TaggedOutput

# One Ctrl-C can come twice: from the terminal, and from a wrapper (make, uv) that passes on what it got from there.
_SAME_REQUEST_S = 0.2


@dataclass(frozen=True)
class Patience:
    """How long ranks may go on by themselves.

    Args:
        term_after_s: from the first failure to SIGTERM for the ranks that still run.
        kill_after_s: from the first failure, or from a SIGTERM to the launcher, to SIGKILL.
        timeout_s: for the whole job; None for no limit. SIGTERM follows at once, SIGKILL after the time between the
            two others.
        keep_going: the others may go on for ever.
    """

    term_after_s: float = 3.0
    kill_after_s: float = 6.0
    timeout_s: float | None = None
    keep_going: bool = False


class Supervisor:
    """Runs until every rank has ended; completion is told by pidfds, never by the end of a pipe.

    What is to be done later stands in one list of (time, signal). The first failure enters SIGTERM and SIGKILL there,
    a signal to the launcher enters what it asks for; sending is the same for all.

    Args:
        ranks: the running ranks.
        inbox: signals to the launcher.
        patience: limits of time.
        outputs: pipes to copy meanwhile, with their copiers.
    """

    def __init__(
        self,
        ranks: Sequence[RankProcess],
        inbox: SignalInbox,
        patience: Patience,
        outputs: Sequence[tuple[int, TaggedOutput]] = (),
    ) -> None:
        self.interrupted_by: int | None = None
        self.timed_out = False
        self._interrupted_at = 0.0
        self._patience = patience
        self._inbox = inbox
        self._running = {rank.rank: rank for rank in ranks}
        self._outcomes: dict[int, RankOutcome] = {}
        self._terminated_s: dict[int, float] = {}
        self._due: list[tuple[float, int]] = []
        self._timeout_at = None if patience.timeout_s is None else time.monotonic() + patience.timeout_s
        self._selector = selectors.DefaultSelector()
        self._watch(inbox.socket.fileno(), self._on_signals)
        for rank in ranks:
            self._watch(rank.pidfd, lambda rank=rank: self._on_end(rank))  # type: ignore[misc]
        for pipe_fd, output in outputs:
            self._watch(pipe_fd, lambda fd=pipe_fd, output=output: self._on_output(fd, output))  # type: ignore[misc]

    def run(self) -> tuple[RankOutcome, ...]:
        """Wait for all ranks; return their outcomes in rank order."""
        with self._selector:
            while self._running:
                for key, _ in self._selector.select(self._next_wait_s()):
                    key.data()
                self._send_what_is_due()
        return tuple(self._outcomes[rank] for rank in sorted(self._outcomes))

    def _watch(self, fd: int, react: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, react)

    def _on_end(self, rank: RankProcess) -> None:
        return_code = rank.poll()
        if return_code is None:
            return
        self._selector.unregister(rank.pidfd)
        del self._running[rank.rank]
        terminated_s = self._terminated_s.get(rank.rank)
        self._outcomes[rank.rank] = RankOutcome(rank.rank, return_code, rank.started_s, time.time(), terminated_s)
        if return_code != 0 and not self._due and not self._patience.keep_going:
            now = time.monotonic()
            self._due += [
                (now + self._patience.term_after_s, signal.SIGTERM),
                (now + self._patience.kill_after_s, signal.SIGKILL),
            ]

    def _on_output(self, pipe_fd: int, output: TaggedOutput) -> None:
        if not output.forward():
            self._selector.unregister(pipe_fd)

    def _on_signals(self) -> None:
        now = time.monotonic()
        for number in self._inbox.take():
            if self.interrupted_by is not None:
                if now - self._interrupted_at > _SAME_REQUEST_S:
                    self._due.append((now, signal.SIGKILL))
                continue
            self.interrupted_by, self._interrupted_at = number, now
            if number == signal.SIGINT:
                for rank in self._running.values():
                    rank.signal_group(signal.SIGINT)
            else:
                self._due += [(now, signal.SIGTERM), (now + self._patience.kill_after_s, signal.SIGKILL)]

    def _send_what_is_due(self) -> None:
        now = time.monotonic()
        if self._timeout_at is not None and now >= self._timeout_at:
            self._timeout_at, self.timed_out = None, True
            between_s = max(0.0, self._patience.kill_after_s - self._patience.term_after_s)
            self._due += [(now, signal.SIGTERM), (now + between_s, signal.SIGKILL)]
        for entry in sorted(self._due):
            if entry[0] <= now:
                self._due.remove(entry)
                self._terminate(entry[1])

    def _terminate(self, number: int) -> None:
        for rank in self._running.values():
            self._terminated_s.setdefault(rank.rank, time.time())
            rank.signal_group(number)

    def _next_wait_s(self) -> float | None:
        times = [at for at, _ in self._due]
        if self._timeout_at is not None:
            times.append(self._timeout_at)
        return max(0.0, min(times) - time.monotonic()) if times else None
