"""What a library has to do to carry operations of a communicator.

A backend is one file in this folder: a subclass of `Backend`, which brings the library up once for a job and makes two
lanes of it for each communicator. A lane is native, or a subclass of `Lane`. CONTRIBUTING.md says how to add one.
"""

from __future__ import annotations

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from hocket import _native
from hocket.backends._declaration import Declaration
from hocket.errors import BackendUnavailable, CommTimeout

T = TypeVar("T")

Shares = Mapping[str, Sequence[tuple[int, float]]]
"""By operation, in order of size: (up to so many bytes, what of them the first library carries, from 0 to 1)."""


@dataclass(frozen=True)
class BackendJob:
    """The job that libraries are brought up for.

    Args:
        rank: of this process among all of the job.
        size: processes of the job.
        local_rank: of this process among those of its host.
        local_size: processes of the job on this host.
        address: of this host, at which the other ranks reach it.
        timeout: seconds in which a library has to be up.
        exchange: hands one short text to every rank and returns the texts of all, by rank; called by all of them.
        up: libraries that are up already.
        gather: hands a short text to some ranks and returns the texts of all of them, in their order; called by all of
            them with (these ranks, a name used once, the text, seconds).
        connect_pmi: makes a socket over which an MPI library of this rank finds its process manager; None on one host,
            where `hocket.boot.pmi` does.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    timeout: float
    exchange: Callable[[str], list[str]]
    gather: Callable[[Sequence[int], str, str, float], list[str]]
    up: Sequence[Backend] = ()
    connect_pmi: Callable[[], socket.socket] | None = None

    def from_rank_zero(self, make: Callable[[], str]) -> str:
        """Return on all ranks what rank 0 makes; what it raises there is BackendUnavailable on all."""
        text = ""
        if self.rank == 0:
            try:
                text = "made " + make()
            except Exception as error:
                text = f"failed {type(error).__name__}: {error}"
        state, _, made = self.exchange(text)[0].partition(" ")
        if state != "made":
            raise BackendUnavailable(f"rank 0 failed with {made}")
        return made

    def all_or_none(self, make: Callable[[], T]) -> T:
        """Run something on every rank; where one fails, BackendUnavailable is raised on all of them."""
        made: list[T] = []
        failure = ""
        try:
            made.append(make())
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        failures = self.exchange(failure)
        for rank, text in enumerate(failures):
            if text:
                raise BackendUnavailable(f"rank {rank}: {text}")
        return made[0]


@dataclass(frozen=True)
class Lanes:
    """The lanes of one library for one communicator; collectives and messages never share one (rule R7).

    Args:
        collective: the library's own collectives.
        point_to_point: messages of the program.
        schedules: messages by which schedules are executed; they never meet those of the program.
    """

    collective: _native.Lane
    point_to_point: _native.Lane
    schedules: _native.Lane


class Backend(Declaration, ABC):
    """A library that is up for a job; what it declares of itself stands in `Declaration`."""

    @classmethod
    def find_reason_against(cls, job: BackendJob) -> str | None:
        """Return why the library is not worth starting where nobody asked for it by name, or None."""
        return "one rank alone needs no library" if job.size == 1 else None

    @classmethod
    @abstractmethod
    def find_obstacle(cls) -> str | None:
        """Return why the library cannot be had in this process, or None. Called on every rank, before `start`."""

    @classmethod
    def prepare(cls) -> None:
        """Set up what has to be before any library is loaded; called where this one is about to be started.

        Raises:
            BackendUnavailable: it is too late for that.
        """

    @classmethod
    @abstractmethod
    def start(cls, job: BackendJob) -> Backend:
        """Bring the library up; called by all ranks, and only if none of them has an obstacle.

        Raises:
            BackendUnavailable: it did not work; the message says why.
            BootstrapMismatch: the library has another idea of the job's size or ranks.
            CommTimeout: it took longer than the job's timeout.
        """

    @property
    @abstractmethod
    def description(self) -> str:
        """What it is, in a few words with its version."""

    @abstractmethod
    def open_lanes(self, members: Sequence[int], key: int, timeout: float) -> Lanes:
        """Make the lanes of a new communicator; called by its members, all of which are in this call.

        Args:
            members: ranks of the job, in order of the communicator's ranks; this process's is among them.
            key: 64 bits by which the members know this communicator from any other.
            timeout: seconds.
        """

    def set_shares(self, key: int, shares: Shares) -> None:
        """Divide the operations of a communicator, where they are split; between the same ones on all members."""

    @abstractmethod
    def close_lanes(self, key: int) -> None:
        """Give back what a communicator held; its operations are over, or it is broken."""

    def why_cannot_shrink(self, members: Collection[int]) -> str | None:
        """Return why the library cannot open lanes any more after other ranks than these have failed, or None.

        Args:
            members: ranks of the job that are left. The answer depends on nothing else, so that all of them agree.
        """
        return f"{self.name} cannot go on after a rank has failed"

    def close(self, *, is_broken: bool) -> None:
        """Let go of the library; after a failure other ranks may not answer any more. Most have nothing to do."""


class Lane(ABC):
    """A lane written in Python. hocket calls it with the GIL, from any thread, and never two calls at once.

    Args:
        size: ranks of the communicator.
    """

    depth: int = 1
    """Operations that are posted before the first of them is over."""

    device: int | None = None
    """Number of the device whose arrays it takes, and no others; None: it takes arrays on the host, and copies there of
    those on devices."""

    polling: Literal["none", "blocking", "patient", "eager"] = "eager"
    """How `test` is called while something is in flight: again and again ("eager"), with pauses, where the library has
    threads of its own that need the processor ("patient"), after what `blocking_call` returned has returned
    ("blocking"), or only after `wake` was called ("none")."""

    def __init__(self, size: int) -> None:
        self.size = size

    def refuses(self, kind: str, dtype: str, reduction: str | None) -> str | None:
        """Return why such operations cannot be carried, or None; asked once, so a constant."""
        return None

    @abstractmethod
    def post(self, operation: _native.LaneOperation, wake: Callable[[], None]) -> object:
        """Start an operation and return a token for it; must not wait for peers.

        The memory at operation.in_address and out_address stays until the operation is over.

        Args:
            operation: what to do, on raw memory.
            wake: may be called from any thread, once or more: `test` is called soon then.
        """

    @abstractmethod
    def test(self, token: object) -> bool:
        """Drive a posted operation; True when its result is in place. What it raises fails the operation."""

    def give_up(self, token: object) -> bool:
        """Forget a posted operation that nobody waits for any more, if that can be done.

        Returns:
            Whether the library will not touch its memory any more; otherwise it is tested until it is over.
        """
        return False


class BlockingLane(Lane):
    """A lane of a library that works on threads of its own, and has a call that waits for an operation."""

    polling: Literal["none", "blocking", "patient", "eager"] = "blocking"

    @abstractmethod
    def blocking_call(self, token: object, seconds: float) -> Callable[[], object]:
        """Return what waits for an operation, about so long at most, and may raise: a function of C alone, within which
        no signal handler runs. Other methods may be called meanwhile."""


def call_driving(what: str, call: Callable[[], T], timeout: float, meanwhile: Callable[[], object] = lambda: None) -> T:
    """Run something that blocks, on a thread of its own, and drive all lanes meanwhile (rule R3).

    Args:
        what: for the error message: "MPI_Init".
        call: must not hold the GIL while it waits for other ranks.
        timeout: seconds; afterwards the thread is left alone.
        meanwhile: called again and again by the thread that calls this; what it raises ends the waiting.

    Raises:
        CommTimeout: it is not over in time.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name=f"hocket {what}", daemon=True)
    thread.start()
    deadline = time.monotonic() + timeout
    while thread.is_alive():
        _native.progress()
        meanwhile()
        thread.join(0.0005)
        if thread.is_alive() and time.monotonic() > deadline:
            raise CommTimeout(f"{what} did not come to an end within {timeout:g} s")
    if failure:
        raise failure[0]
    return result[0]
