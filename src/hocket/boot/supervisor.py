"""Start the ranks of a job, wait for them, and end ranks that still run after another rank's failure."""

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

# One Ctrl-C can arrive twice: from the terminal, and from a wrapper (make, uv) that passes it on.
_SAME_REQUEST_S = 0.2
# Ranks per CPU that may be starting at once. A rank is starting until it reports ready, or until this time has passed.
_MOST_STARTING_PER_CPU = 4
_STARTING_S = 2.0
# After a signal or a timeout, the rest of the output is dropped if its reader reads nothing for this time.
_MOST_UNREAD_S = 1.0
_HINT_AFTER_S = 3.0  # from Ctrl-C to a message about ranks that have not ended
_CHECK_S = 0.1


@dataclass(frozen=True)
class Patience:
    """Time limits of ranks.

    Args:
        term_after_s: time from the first failure to SIGTERM for the ranks that still run.
        kill_after_s: time from the first failure, or from a SIGTERM to the launcher, to SIGKILL.
        timeout_s: time limit of the whole job; None: no limit. Then SIGTERM is sent at once, SIGKILL after
            `kill_after_s` - `term_after_s`.
        keep_going: whether other ranks may continue after a failure without a limit.
        mpi_start_s: time that some ranks may wait in MPI_Init for others.
        mpi_named_after_s: time in MPI_Init before the missing ranks are named.
    """

    term_after_s: float = 3.0
    kill_after_s: float = 6.0
    timeout_s: float | None = None
    keep_going: bool = False
    mpi_start_s: float = 600.0
    mpi_named_after_s: float = 10.0


@dataclass(frozen=True)
class StartedRank:
    """A running rank.

    Args:
        process: the process of the rank.
        outputs: its outputs that pass through the launcher.
    """

    process: RankProcess
    outputs: Sequence[RankOutput] = ()


class Supervisor:
    """Runs until every rank has ended; pidfds report the end of a rank, never the end of a pipe.

    One list of (time, signal) has all signals to send later. The first failure adds SIGTERM and SIGKILL to it, a signal
    to the launcher adds the signals that it causes. After either, no further rank is started.

    Args:
        starts: functions that each start a rank, in rank order.
        ready: non-blocking reading end of the pipe on which ranks report that their interpreters have started.
        inbox: signals to the launcher.
        patience: time limits.
        targets: the launcher's outputs.
        mpi: sockets to the ranks' MPI libraries.
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
        self._starting: dict[int, float] = {}  # time of the start, by rank; slow starts are dropped
        self._unready: set[int] = set()  # ranks that have not reported ready, without a time limit
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
                # Start one rank at a time, and check for signals after each.
                self._watcher.wait(0 if starts_now else self._next_wait_s())
                self._check_mpi()
                self._hint_at_second_signal()
                self._send_due_signals()
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
        """Write the rest of the output; after a signal or a timeout, do not wait for a reader that has stopped."""
        for rank in self._ended:
            rank.signal_group(signal.SIGKILL)  # so that child processes of ended ranks write no more
        self._pump.finish()
        must_wait = self.interrupted_by is None and not self.timed_out
        num_signals, last_read_s = self._num_signals, time.monotonic()
        while (num_queued := self._pump.num_queued) > 0:
            self._pump.update()
            self._watcher.wait(_CHECK_S)
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
        if terminated_s is not None and rank.rank in self._failed:  # it failed earlier, and waited for others
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
                    # The program has not started, and Python would print a traceback of its own start.
                    if rank.rank in self._starting or rank.rank in self._unready:
                        self._terminated_s[rank.rank] = time.time()
                        rank.signal_group(signal.SIGKILL)
                    else:
                        rank.signal_group(signal.SIGINT)
            else:
                self._due += [(now, signal.SIGTERM), (now + self._patience.kill_after_s, signal.SIGKILL)]

    def _send_due_signals(self) -> None:
        now = time.monotonic()
        if self._timeout_at is not None and now >= self._timeout_at:
            self._timeout_at, self.timed_out = None, True
            self._end_all()
        for entry in sorted(self._due):
            if entry[0] <= now:
                self._due.remove(entry)
                self._terminate(entry[1])

    def _hint_at_second_signal(self) -> None:
        """Print once how to end ranks that still run after Ctrl-C."""
        if self._hint_at is None or time.monotonic() < self._hint_at:
            return
        self._hint_at = None
        if not self._due and self._running:
            self._report(f"{name_ranks(sorted(self._running))} did not exit after Ctrl-C; press it again to kill them")

    def _check_mpi(self) -> None:
        if self._mpi is None or self._are_being_ended() or not self._running:
            return
        if failed := self._mpi.take_failed():
            self._failed |= failed
            if not self._patience.keep_going:
                self._end_after_failure()
                return
        end = self._mpi.check(self._report)
        if end is None:
            return
        if self.interrupted_by is None:
            self.ended = end
        if end.rank in self._running:
            self._terminated_s.setdefault(end.rank, time.time())
            self._running[end.rank].signal_group(signal.SIGKILL)
        self._end_all()

    def _are_being_ended(self) -> bool:
        """Return whether ranks are being ended by signals, so that their waits need no further check."""
        return bool(self._due) or self.timed_out

    def _report(self, line: str) -> None:
        """Print a line to the ranks' stderr, below an incomplete line."""
        text = f"hocket run: {line}\n".encode()
        if self._targets:
            self._targets[-1].write_of(None, text)
        else:
            with contextlib.suppress(OSError):
                os.write(2, text)

    def _end_after_failure(self) -> None:
        """Schedule the end of the other ranks, with time to exit by themselves."""
        self._is_ending = True
        now = time.monotonic()
        self._due += [
            (now + self._patience.term_after_s, signal.SIGTERM),
            (now + self._patience.kill_after_s, signal.SIGKILL),
        ]

    def _end_all(self) -> None:
        """Schedule SIGTERM now, and SIGKILL with the same delay as after a failure."""
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
        if self._mpi is not None and not self._are_being_ended() and (check_s := self._mpi.next_check_s()) is not None:
            waits_s.append(check_s)
        return min(waits_s, default=None)
