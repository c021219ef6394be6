"""Work beside the program, as steps: a thread runs them, or a virtual rank, which has no threads, in between.

A generator yields what it waits for: an operation in flight, or a pause. Its code is the same in both cases.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from hocket.errors import CommTimeout


@dataclass(frozen=True)
class Pause:
    """A wait for time to pass.

    Args:
        seconds: how long.
        is_idle: whether it may end as soon as there is something to do.
    """

    seconds: float
    is_idle: bool = False


class Pending(Protocol):
    """An operation in flight."""

    def wait(self, timeout: float | None = None) -> None:
        """Wait for it, at most so many seconds."""


class OnClock(Protocol):
    """What is needed of a communicator."""

    @property
    def is_virtual(self) -> bool: ...
    def compute(self, seconds: float) -> None: ...
    def wtime(self) -> float: ...


Steps = Generator[Any, None, None]
"""Yields operations in flight and `Pause`s."""


class Background(Protocol):
    """Runs steps, one generator after the other."""

    def start(self, steps: Steps, timeout_s: float | None = None) -> Pending:
        """Begin to run them, after those that were given before.

        Args:
            steps: the steps.
            timeout_s: timeout of each of their waits, in seconds; None: that of the background.
        """

    def poll(self) -> None:
        """Go on as far as possible without waiting, where no thread does."""

    def close(self) -> None:
        """Stop. Idempotent."""


def background_of(comm: OnClock, name: str, timeout_s: float) -> Background:
    """Return what runs steps of a rank.

    Args:
        comm: a communicator of the rank.
        name: name of the thread.
        timeout_s: timeout of every wait of the steps, in seconds.
    """
    return VirtualBackground(comm, timeout_s) if comm.is_virtual else ThreadBackground(name, timeout_s)


class ThreadBackground:
    """Runs steps in a thread; see `background_of`."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._thread = ThreadPoolExecutor(1, name)

    def start(self, steps: Steps, timeout_s: float | None = None) -> Pending:
        """See `Background.start`."""
        return _InThread(self._thread.submit(self._run, steps, self._timeout_s if timeout_s is None else timeout_s))

    def poll(self) -> None:
        """The thread goes on by itself."""

    def close(self) -> None:
        """See `Background.close`."""
        self._thread.shutdown()

    def _run(self, steps: Steps, timeout_s: float) -> None:
        wait_in_turn(steps, timeout_s, lambda pause: time.sleep(pause.seconds))


class _InThread:
    """What a thread runs."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self, timeout: float | None = None) -> None:
        try:
            self._future.result(timeout)
        except TimeoutError as error:
            if isinstance(error, CommTimeout):
                raise
            raise CommTimeout(f"work beside the program did not complete within {timeout:g} s") from None


def wait_in_turn(steps: Steps, timeout_s: float, pause: Callable[[Pause], object]) -> None:
    """Run steps to their end, with a wait at each one.

    Args:
        steps: the steps.
        timeout_s: timeout of each wait, in seconds.
        pause: waits for time to pass.

    Raises:
        CommTimeout, PeerFailure: an operation fails.
    """
    for each in steps:
        if isinstance(each, Pause):
            pause(each)
        else:
            each.wait(timeout=timeout_s)


class VirtualBackground:
    """Runs steps on the clock of a virtual rank, whenever it is asked to; see `background_of`."""

    def __init__(self, comm: OnClock, timeout_s: float) -> None:
        self._comm, self._timeout_s = comm, timeout_s
        self._queue: deque[_InTurn] = deque()

    def start(self, steps: Steps, timeout_s: float | None = None) -> Pending:
        """See `Background.start`."""
        self._queue.append(_InTurn(self, steps, self._timeout_s if timeout_s is None else timeout_s))
        return self._queue[-1]

    def poll(self) -> None:
        """See `Background.poll`."""
        while self._queue and self._is_over(self._queue[0]):
            self._advance()

    def advance(self) -> None:
        """Wait for what the first steps wait for, and run them up to their next wait."""
        first = self._queue[0]
        if isinstance(first.awaited, Pause):
            self._comm.compute(max(first.until_s - self._comm.wtime(), 0.0))
        elif first.awaited is not None:
            first.awaited.wait(timeout=first.timeout_s)
        self._advance()

    def wake(self) -> None:
        """End an idle pause: there is something to do."""
        if self._queue and isinstance(pause := self._queue[0].awaited, Pause) and pause.is_idle:
            self._queue[0].until_s = 0.0

    def close(self) -> None:
        """See `Background.close`."""
        for each in self._queue:
            each.steps.close()
        self._queue.clear()

    def _is_over(self, first: _InTurn) -> bool:
        if isinstance(first.awaited, Pause):
            return self._comm.wtime() >= first.until_s
        return first.awaited is None or bool(first.awaited.test())

    def _advance(self) -> None:
        first = self._queue[0]
        try:
            first.awaited = next(first.steps)
        except StopIteration:
            first.is_done = True
            self._queue.popleft()
            return
        if isinstance(first.awaited, Pause):
            first.until_s = self._comm.wtime() + first.awaited.seconds


class _InTurn:
    """What a virtual rank runs."""

    def __init__(self, background: VirtualBackground, steps: Steps, timeout_s: float) -> None:
        self._background = background
        self.steps = steps
        self.timeout_s = timeout_s
        self.awaited: Any = None
        self.until_s = 0.0
        self.is_done = False

    def wait(self, timeout: float | None = None) -> None:
        while not self.is_done:
            self._background.advance()


class StepsInOrder:
    """Runs steps of one communicator in the order of the calls: at once, or beside the program.

    Args:
        comm: a communicator of the rank.
        name: name of the thread, if one is needed.

    Attributes:
        is_idle: whether nothing was started beside the program so far.
    """

    def __init__(self, comm: OnClock, name: str) -> None:
        self._comm, self._name = comm, name
        self._background: Background | None = None
        self.is_idle = True

    def start(self, steps: Steps, timeout_s: float) -> Pending:
        """Begin to run steps beside the program, each wait with a timeout in seconds."""
        if self._background is None:
            self._background = background_of(self._comm, self._name, timeout_s)
            self.is_idle = False
        return self._background.start(steps, timeout_s)

    def run(self, steps: Steps, timeout_s: float) -> None:
        """Run steps to their end, after those that are in flight."""
        if self._background is not None or self._comm.is_virtual:
            self.start(steps, timeout_s).wait()
        else:
            wait_in_turn(steps, timeout_s, lambda pause: None)
