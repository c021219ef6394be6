"""Starts the ranks of a job, waits for them, and ends those that outlive another one's failure."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hocket.boot.job_result import JobEnd, RankOutcome
from hocket.boot.mpi_sockets import MpiSockets
from hocket.boot.output_pump import OutputPump
from hocket.boot.rank_output import OutputTarget, RankOutput
from hocket.boot.rank_process import RankProcess
from hocket.boot.readiness import ranks_that_are_ready
from hocket.boot.signals import SignalInbox
from hocket.boot.summary import name_ranks
from hocket.boot.watcher import Watcher

# One Ctrl-C can come twice: from the terminal, and from a wrapper (make, uv) that passes on what it got from there.
_SAME_REQUEST_S = 0.2
# Ranks per CPU that may be starting at once. A rank is starting until it reports ready, or until this time has passed.
_MOST_STARTING_PER_CPU = 4
_STARTING_S = 2.0
# After a signal or a timeout the rest of the output is dropped when its reader has read nothing for this long.
_MOST_UNREAD_S = 1.0
_HINT_AFTER_S = 3.0  # from Ctrl-C to a word about the ranks that do not end by it
_LOOK_S = 0.1


@dataclass(frozen=True)
class Patience:
    """How long ranks may go on by themselves.

    Args:
        term_after_s: from the first failure to SIGTERM for the ranks that still run.
        kill_after_s: from the first failure, or from a SIGTERM to the launcher, to SIGKILL.
        timeout_s: for the whole job; None for no limit. SIGTERM follows at once, SIGKILL after the time between the
            two others.
        keep_going: the others may go on for ever.
        mpi_start_s: that some ranks may wait in MPI_Init for the others.
        mpi_named_after_s: after which those are named.
    """

    term_after_s: float = 3.0
    kill_after_s: float = 6.0
    timeout_s: float | None = None
    keep_going: bool = False
    mpi_start_s: float = 600.0
    mpi_named_after_s: float = 10.0


@dataclass(frozen=True)
class StartedRank:
    """A rank that runs.

    Args:
        process: of the rank.
        outputs: what it writes, where that goes through the launcher.
    """

    process: RankProcess
    outputs: Sequence[RankOutput] = ()


class Supervisor:
    """Runs until every rank has ended; completion is told by pidfds, never by the end of a pipe.

    What is to be done later stands in one list of (time, signal). The first failure enters SIGTERM and SIGKILL there,
    a signal to the launcher enters what it asks for; sending is the same for all. After either, no rank is started any
    more.

    Args:
        starts: each starts a rank, in rank order.
        ready: reading end to which ranks write when their interpreters are up; non-blocking.
        inbox: signals to the launcher.
        patience: limits of time.
        targets: where outputs of ranks go.
        mpi: by which ranks start MPI.
    """

    def __init__(
        self,
        starts: Sequence[Callable[[], StartedRank]],
        ready: int,
        inbox: SignalInbox,
        patience: Patience,
        targets: Sequence[OutputTarget] = (),
        mpi: MpiSockets | None = None,
    ) -> None:
        self.interrupted_by: int | None = None
        self.timed_out = False
        self.ended: JobEnd | None = None
        self._interrupted_at = 0.0
        self._num_signals = 0
        self._hint_at: float | None = None
        self._failed: dict[int, int] = {}  # exit codes of ranks that have reported a failure
        self._patience = patience
        self._inbox = inbox
        self._to_start = deque(starts)
        self._is_ending = False
        self._starting: dict[int, float] = {}  # rank: when; those that take too long are not waited for
        self._unready: set[int] = set()  # ranks that have still to say that they are ready, however long that takes
        self._ended: list[RankProcess] = []
        self._most_starting = max(8, _MOST_STARTING_PER_CPU * len(os.sched_getaffinity(0)))
        self._ready = ready
        self._running: dict[int, RankProcess] = {}
        self._outcomes: dict[int, RankOutcome] = {}
        self._terminated_s: dict[int, float] = {}
        self._due: list[tuple[float, int]] = []
        self._timeout_at = None if patience.timeout_s is None else time.monotonic() + patience.timeout_s
        self._watcher = Watcher()
        self._pump = OutputPump(targets, self._watcher)
        self._watcher.watch(inbox.socket.fileno(), self._on_signals)
        self._watcher.watch(ready, self._on_ready)
        self._targets = targets
        self._mpi = mpi
        if mpi is not None:
            mpi.watch(self._watcher)

    @property
    def num_not_started(self) -> int:
        return len(self._to_start)

    def run(self) -> tuple[RankOutcome, ...]:
        """Start the ranks and wait for all of them; return the outcomes of those that were started, in rank order.

        Raises:
            LaunchError: a rank could not be started.
        """
        with contextlib.closing(self._watcher):
            while self._running or self._may_start():
                starts_now = self._may_start() and len(self._starting) < self._most_starting
                if starts_now:
                    self._start(self._to_start.popleft())
                # One at a time, and a look for signals after each.
                self._watcher.wait(0 if starts_now else self._next_wait_s())
                self._look_at_mpi()
                self._hint_at_second_signal()
                self._send_what_is_due()
                self._forget_slow_starts()
                self._pump.update()
            self._drain()
        return tuple(self._outcomes[rank] for rank in sorted(self._outcomes))

    def _may_start(self) -> bool:
        return bool(self._to_start) and not self._is_ending

    def _start(self, start: Callable[[], StartedRank]) -> None:
        started = start()
        rank = started.process
        self._running[rank.rank] = rank
        self._starting[rank.rank] = time.monotonic()
        if rank.says_ready:
            self._unready.add(rank.rank)
        self._watcher.watch(rank.pidfd, lambda: self._on_end(rank))
        for output in started.outputs:
            self._pump.add(output)

    def _on_ready(self) -> None:
        for rank in ranks_that_are_ready(self._ready):
            self._starting.pop(rank, None)
            self._unready.discard(rank)

    def _forget_slow_starts(self) -> None:
        now = time.monotonic()
        self._starting = {rank: at for rank, at in self._starting.items() if now - at <= _STARTING_S}

    def _drain(self) -> None:
        """Write the rest of the output. After a signal or a timeout a reader that has stopped is not waited for."""
        for rank in self._ended:
            rank.signal_group(signal.SIGKILL)  # processes that outlive their rank write nothing more
        self._pump.finish()
        must_wait = self.interrupted_by is None and not self.timed_out
        num_signals, last_read_s = self._num_signals, time.monotonic()
        while (num_queued := self._pump.num_queued) > 0:
            self._pump.update()
            self._watcher.wait(_LOOK_S)
            now = time.monotonic()
            if self._pump.num_queued < num_queued:
                last_read_s = now
            if self._num_signals > num_signals or (not must_wait and now > last_read_s + _MOST_UNREAD_S):
                return

    def _on_end(self, rank: RankProcess) -> None:
        return_code = rank.poll()
        if return_code is None:
            return
        self._watcher.unwatch(rank.pidfd)
        self._ended.append(self._running.pop(rank.rank))
        self._starting.pop(rank.rank, None)
        if self._mpi is not None:
            self._mpi.note_end(rank.rank, return_code)
        terminated_s = self._terminated_s.get(rank.rank)
        if terminated_s is not None and rank.rank in self._failed:  # before, and it waited for others
            return_code, terminated_s = self._failed[rank.rank], None
        self._outcomes[rank.rank] = RankOutcome(rank.rank, return_code, rank.started_s, time.time(), terminated_s)
        if return_code != 0 and not self._due and not self._patience.keep_going:
            self._end_after_failure()

    def _on_signals(self) -> None:
        now = time.monotonic()
        for number in self._inbox.take():
            self._num_signals += 1
            if self.interrupted_by is not None:
                self._hint_at = None
                if now - self._interrupted_at > _SAME_REQUEST_S:
                    self._due.append((now, signal.SIGKILL))
                continue
            self.interrupted_by, self._interrupted_at, self._is_ending = number, now, True
            if number == signal.SIGINT:
                self._hint_at = now + _HINT_AFTER_S
                for rank in self._running.values():
                    # The program has not begun, and Python would print where it was.
                    if rank.rank in self._starting or rank.rank in self._unready:
                        self._terminated_s[rank.rank] = time.time()
                        rank.signal_group(signal.SIGKILL)
                    else:
                        rank.signal_group(signal.SIGINT)
            else:
                self._due += [(now, signal.SIGTERM), (now + self._patience.kill_after_s, signal.SIGKILL)]

    def _send_what_is_due(self) -> None:
        now = time.monotonic()
        if self._timeout_at is not None and now >= self._timeout_at:
            self._timeout_at, self.timed_out = None, True
            self._end_all()
        for entry in sorted(self._due):
            if entry[0] <= now:
                self._due.remove(entry)
                self._terminate(entry[1])

    def _hint_at_second_signal(self) -> None:
        """Say once how to end ranks that did not end by Ctrl-C."""
        if self._hint_at is None or time.monotonic() < self._hint_at:
            return
        self._hint_at = None
        if not self._due and self._running:
            self._say(f"{name_ranks(sorted(self._running))} did not end by Ctrl-C; once more kills them")

    def _look_at_mpi(self) -> None:
        if self._mpi is None or self._are_being_ended() or not self._running:
            return
        if failed := self._mpi.take_failed():
            self._failed |= failed
            if not self._patience.keep_going:
                self._end_after_failure()
                return
        end = self._mpi.look_at_clock(self._say)
        if end is None:
            return
        if self.interrupted_by is None:
            self.ended = end
        if end.rank in self._running:
            self._terminated_s.setdefault(end.rank, time.time())
            self._running[end.rank].signal_group(signal.SIGKILL)
        self._end_all()

    def _are_being_ended(self) -> bool:
        """Whether the ranks get signals, or got the last one, so that what they wait for is no reason any more."""
        return bool(self._due) or self.timed_out

    def _say(self, line: str) -> None:
        """Tell whoever reads the ranks' errors something, below a line that is not complete."""
        text = f"hocket run: {line}\n".encode()
        if self._targets:
            self._targets[-1].write_of(None, text)
        else:
            with contextlib.suppress(OSError):
                os.write(2, text)

    def _end_after_failure(self) -> None:
        """Give the other ranks their time to end by themselves."""
        self._is_ending = True
        now = time.monotonic()
        self._due += [
            (now + self._patience.term_after_s, signal.SIGTERM),
            (now + self._patience.kill_after_s, signal.SIGKILL),
        ]

    def _end_all(self) -> None:
        """End the ranks, SIGKILL comes after SIGTERM as after a failure."""
        self._is_ending = True
        now = time.monotonic()
        between_s = max(0.0, self._patience.kill_after_s - self._patience.term_after_s)
        self._due += [(now, signal.SIGTERM), (now + between_s, signal.SIGKILL)]

    def _terminate(self, number: int) -> None:
        for rank in self._running.values():
            self._terminated_s.setdefault(rank.rank, time.time())
            rank.signal_group(number)

    def _next_wait_s(self) -> float | None:
        times = [at for at, _ in self._due]
        if self._hint_at is not None:
            times.append(self._hint_at)
        if self._may_start() and self._starting:
            times.append(min(self._starting.values()) + _STARTING_S)
        if self._timeout_at is not None:
            times.append(self._timeout_at)
        waits_s = [max(0.0, min(times) - time.monotonic())] if times else []
        if (update_s := self._pump.next_update_s()) is not None:
            waits_s.append(update_s)
        if self._mpi is not None and not self._are_being_ended() and (look_s := self._mpi.next_look_s()) is not None:
            waits_s.append(look_s)
        return min(waits_s, default=None)
