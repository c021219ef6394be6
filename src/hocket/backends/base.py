"""The interface of a library that carries operations of communicators.

A backend is one file in this folder, with a subclass of `Backend`. It starts the library once per job, and makes lanes
for each communicator. A lane is native, or a subclass of `Lane`. CONTRIBUTING.md describes how to add a backend.
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
"""For each operation, in order of size: (largest number of bytes, share of the first library from 0 to 1)."""


@dataclass(frozen=True)
class BackendJob:
    """The job that libraries are started for.

    Args:
        rank: rank of this process in the job.
        size: number of processes of the job.
        local_rank: number of this process among those of its host.
        local_size: number of processes of the job on this host.
        address: address at which the other ranks reach this host.
        timeout: seconds in which a library must have started.
        exchange: sends a short text to every rank, and returns the texts of all ranks, by rank; called by all ranks.
        gather: sends a short text to some ranks, and returns the texts of all of them, in their order; called by all of
            them with (these ranks, a name that is used once, the text, seconds).
        up: libraries that have already started.
        connect_pmi: makes a socket to the process manager for an MPI library of this rank; None on one host, where
            `hocket.boot.pmi` makes it.

    Examples:
        >>> from hocket.backends import BackendJob
        >>> job = BackendJob(
        ...     rank=0, size=1, local_rank=0, local_size=1, address="127.0.0.1", timeout=10.0,
        ...     exchange=lambda text: [text], gather=lambda ranks, name, text, seconds: [text],
        ... )
        >>> job.from_rank_zero(lambda: "tcp://127.0.0.1:5000")
        'tcp://127.0.0.1:5000'
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
        """Return on all ranks the text that rank 0 makes; an error on rank 0 raises BackendUnavailable on all ranks."""
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
        """Call `make` on every rank; an error on one rank raises BackendUnavailable on all ranks."""
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
    """The lanes of one library for one communicator; collectives and messages never share a lane (rule R7).

    Args:
        collective: lane for the library's own collectives.
        point_to_point: lane for messages of the program.
        schedules: lane for the messages of schedules; they never match messages of the program.

    Examples:
        >>> from hocket import _native
        >>> from hocket.backends import Lane, Lanes
        >>> class Idle(Lane):
        ...     def post(self, operation, wake):
        ...         return operation
        ...     def test(self, token):
        ...         return True
        >>> lanes = Lanes(*(_native.python_lane(Idle(size=2), "toy") for _ in range(3)))
        >>> type(lanes.collective).__name__
        'Lane'
    """

    collective: _native.Lane
    point_to_point: _native.Lane
    schedules: _native.Lane


class Backend(Declaration, ABC):
    """A library that has started for a job; its declarations are in `Declaration`.

    Examples:
        A minimal backend that only says why it cannot be used:

        >>> from hocket.backends import Backend
        >>> class Toy(Backend):
        ...     name = "toy"
        ...     @classmethod
        ...     def find_obstacle(cls):
        ...         return "toy is not installed"
        ...     @classmethod
        ...     def start(cls, job):
        ...         return cls()
        ...     description = "toy 1.0"
        ...     def open_lanes(self, members, key, timeout): ...
        ...     def close_lanes(self, key): ...
        >>> Toy.find_obstacle()
        'toy is not installed'
    """

    @classmethod
    def find_reason_against(cls, job: BackendJob) -> str | None:
        """Return why the library should not be started unless it is requested by name, or None."""
        return "one rank alone needs no library" if job.size == 1 else None

    @classmethod
    @abstractmethod
    def find_obstacle(cls) -> str | None:
        """Return why the library cannot be used in this process, or None. Called on every rank, before `start`."""

    @classmethod
    def prepare(cls) -> None:
        """Make settings that must be made before any library is loaded; called if this library will be started.

        Raises:
            BackendUnavailable: a library is already loaded, so it is too late.
        """

    @classmethod
    @abstractmethod
    def start(cls, job: BackendJob) -> Backend:
        """Start the library; called by all ranks, and only if no rank has an obstacle.

        Raises:
            BackendUnavailable: the start failed; the message gives the reason.
            BootstrapMismatch: the library reports another size or rank than the job.
            CommTimeout: it took longer than the job's timeout.
        """

    @property
    @abstractmethod
    def description(self) -> str:
        """Short description of the library, with its version."""

    @abstractmethod
    def open_lanes(self, members: Sequence[int], key: int, timeout: float) -> Lanes:
        """Make the lanes of a new communicator; called by all its members at the same time.

        Args:
            members: ranks of the job, in the order of the communicator's ranks; this process is one of them.
            key: 64-bit key of the communicator, equal on all members and different from all other communicators.
            timeout: seconds.
        """

    def set_shares(self, key: int, shares: Shares) -> None:
        """Set the shares of split operations of a communicator; called on all members between the same operations."""

    @abstractmethod
    def close_lanes(self, key: int) -> None:
        """Release the resources of a communicator; its operations have finished, or it is broken."""

    def why_cannot_shrink(self, members: Collection[int]) -> str | None:
        """Return why the library cannot open lanes any longer after all ranks except these have failed, or None.

        Args:
            members: the surviving ranks of the job. The answer depends only on them, so all survivors agree.
        """
        return f"{self.name} cannot continue after a rank has failed"

    def close(self, *, is_broken: bool) -> None:
        """Release the library; after a failure other ranks may no longer answer. Does nothing by default."""


class Lane(ABC):
    """A lane written in Python. hocket calls it with the GIL, from any thread, but never two calls at the same time.

    Args:
        size: number of ranks of the communicator.

    Examples:
        A lane for a single rank, whose operations complete at once:

        >>> from hocket.backends import Lane
        >>> class Single(Lane):
        ...     def refuses(self, kind, dtype, reduction):
        ...         return None if kind == "barrier" else f"Single has no {kind}"
        ...     def post(self, operation, wake):
        ...         return operation.kind  # a token for `test`
        ...     def test(self, token):
        ...         return True
        >>> Single(size=1).refuses("all_reduce", "float32", "sum")
        'Single has no all_reduce'
    """

    depth: int = 1
    """Largest number of operations that are posted at the same time."""

    device: int | None = None
    """Number of the only device whose arrays it accepts. None: it accepts arrays on the host; arrays on devices are
    copied there."""

    polling: Literal["none", "blocking", "patient", "eager"] = "eager"
    """When `test` is called while an operation is in flight. "eager": continuously. "patient": with pauses, because
    threads of the library need the processor. "blocking": after each return of the function from `blocking_call`.
    "none": only after `wake` was called."""

    def __init__(self, size: int) -> None:
        self.size = size

    def refuses(self, kind: str, dtype: str, reduction: str | None) -> str | None:
        """Return why such operations cannot be carried, or None. The answer is stored, so it must not change."""
        return None

    @abstractmethod
    def post(self, operation: _native.LaneOperation, wake: Callable[[], None]) -> object:
        """Start an operation and return a token for it; must not wait for peers.

        The memory at operation.in_address and out_address stays valid until the operation is finished.

        Args:
            operation: the operation, on raw memory.
            wake: function that makes hocket call `test` soon; can be called from any thread, and many times.
        """

    @abstractmethod
    def test(self, token: object) -> bool:
        """Drive a posted operation; return True when its result is in place. An exception fails the operation."""

    def give_up(self, token: object) -> bool:
        """Cancel a posted operation that hocket no longer waits for, if possible.

        Returns:
            True if the library will no longer use its memory; otherwise hocket tests it until it is finished.
        """
        return False


class BlockingLane(Lane):
    """A lane of a library with its own threads and a call that waits for an operation."""

    polling: Literal["none", "blocking", "patient", "eager"] = "blocking"

    @abstractmethod
    def blocking_call(self, token: object, seconds: float) -> Callable[[], object]:
        """Return a function that waits for an operation, for about `seconds` at most.

        It must be a C function, so that no signal handler runs within it; it may raise. Other methods may be called
        while it waits.
        """


def call_driving(what: str, call: Callable[[], T], timeout: float, meanwhile: Callable[[], object] = lambda: None) -> T:
    """Run a blocking call on its own thread, and drive all lanes while waiting for it (rule R3).

    Args:
        what: name of the call for the error message, e.g. "MPI_Init".
        call: the call; it must not hold the GIL while it waits for other ranks.
        timeout: seconds; after that the thread is abandoned.
        meanwhile: called repeatedly by the waiting thread; an exception ends the wait.

    Raises:
        CommTimeout: the call did not return in time.
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
            raise CommTimeout(f"{what} did not return within {timeout:g} s")
    if failure:
        raise failure[0]
    return result[0]
