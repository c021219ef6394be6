"""Libraries that carry large frames between hosts: MPI, where both ends are in one world of it, and UCX.

Each process tells in its greeting by which of them it can be reached. The end that connects chooses the first one of
its list that both have; then both send some bytes over it, and if these do not arrive, frames go over TCP.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import logging
import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache

from hocket import _native
from hocket.backends.mpi import MpiWorld
from hocket.backends.ucx import UcxPeers
from hocket.errors import BackendUnavailable

logger = logging.getLogger(__name__)
_STOP_S = 5.0
"""The process waits at its end for frames that are on their way, but not longer."""
_LOOK_S = 0.001
_RETRY_S = 60.0
"""To a peer at which nothing arrived, new connections go over TCP for so long."""
_NUM_UCX_CHANNELS = 1 << 31


class CarrierLibrary(ABC):
    """A library that carries frames; one object a process."""

    def __init__(self, numbers: range) -> None:
        self._range = numbers
        first = secrets.randbelow(len(numbers))  # other processes' numbers are different ones
        self._numbers = (numbers[(first + each) % len(numbers)] for each in itertools.count())
        self._failed: dict[str, float] = {}  # words of peers; when, in seconds of time.monotonic()

    def check_number(self, number: int) -> None:
        """Raise ValueError unless a peer may have chosen a number."""
        if number not in self._range:
            raise ValueError(
                f"the peer has chosen the number {number}: it must lie between {self._range[0]} and {self._range[-1]}"
            )

    def next_number(self) -> int:
        """Return a number for what this process receives over a connection; unused for a long time."""
        return next(self._numbers)

    def note_failure(self, word: str) -> None:
        """Note that nothing arrives at a peer, or from it; not for ever."""
        now_s = time.monotonic()
        self._failed = {each: when for each, when in self._failed.items() if now_s - when < _RETRY_S} | {word: now_s}

    def has_failed(self, word: str) -> bool:
        """Return whether this was noted of late."""
        return time.monotonic() - self._failed.get(word, -_RETRY_S) < _RETRY_S

    @property
    @abstractmethod
    def word(self) -> str:
        """What peers must know of this process."""

    @abstractmethod
    def reaches(self, word: str) -> bool:
        """Return whether a peer that has told this word may be reached."""

    @abstractmethod
    def carrier(self, word: str, outgoing: int, incoming: int) -> _native.FrameCarrier:
        """Return what carries the frames of a connection.

        Args:
            word: of the peer, which `reaches` accepts.
            outgoing: the peer's number.
            incoming: the number of this end.
        """


class MpiCarriers(CarrierLibrary):
    """MPI's world. Half of its tags are taken: a program must not receive with MPI.ANY_TAG on COMM_WORLD meanwhile."""

    def __init__(self, world: MpiWorld) -> None:
        super().__init__(range(world.most_tag // 2 + 1, world.most_tag))
        self._world = world

    @property
    def is_running(self) -> bool:
        """Whether MPI is not finalized."""
        return self._world.is_running

    @property
    def word(self) -> str:
        """The rank in a world."""
        return f"{self._world.rank} {self._own_world()}"

    def reaches(self, word: str) -> bool:
        """See `CarrierLibrary.reaches`."""
        rank, _, world = word.partition(" ")
        is_rank = rank.isascii() and rank.isdigit() and len(rank) < 10 and int(rank) < self._world.size
        return is_rank and int(rank) != self._world.rank and world == self._own_world()

    def carrier(self, word: str, outgoing: int, incoming: int) -> _native.FrameCarrier:
        """See `CarrierLibrary.carrier`."""
        return _native.FrameCarrier(self._world.message_lane(), int(word.partition(" ")[0]), outgoing, incoming)

    def _own_world(self) -> str:
        """Describe the world: two that are described alike can be different ones, which the first bytes show."""
        names = ("PMIX_NAMESPACE", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID", "PALS_APID", "FLUX_JOB_ID")
        found = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
        return " ".join([f"{self._world.size}", self._world.version, *found])[:1000]


class UcxCarriers(CarrierLibrary):
    """UCX, through ucxx."""

    def __init__(self, peers: UcxPeers) -> None:
        super().__init__(range(1, _NUM_UCX_CHANNELS))
        self._peers = peers

    @property
    def word(self) -> str:
        """The address of the worker."""
        return self._peers.address

    def reaches(self, word: str) -> bool:
        """See `CarrierLibrary.reaches`."""
        return 0 < len(word) < 16 << 10

    def carrier(self, word: str, outgoing: int, incoming: int) -> _native.FrameCarrier:
        """See `CarrierLibrary.carrier`."""
        return _native.FrameCarrier(self._peers.message_lane(word, outgoing, incoming), 1, 0, 0)


def own_libraries(names: Sequence[str], scheme: str) -> dict[str, CarrierLibrary]:
    """Return the libraries of a list that this process can use.

    Args:
        names: "mpi", "ucx".
        scheme: of the connection. With "mpi", an MPI that runs, but cannot be used, is an error; otherwise one warning
            says so.

    Raises:
        ValueError: a name is unknown.
        RuntimeError: a library cannot be used; the error that distributed has for a connection that it must not make.
    """
    found: dict[str, CarrierLibrary] = {}
    if _native.is_forked_child():  # the libraries belong to the parent
        return found
    for name in names:
        if name not in _FIND:
            raise ValueError(
                f"distributed.comm.hocket.carriers must consist of {', '.join(_FIND)}, not {name!r}: set it to [] for "
                "TCP only"
            )
        try:
            library = _FIND[name]()
        except BackendUnavailable as error:
            if name != "mpi" or scheme == "mpi":
                raise RuntimeError(f"{name} cannot carry frames of Dask: {error}") from None
            _warn(f"{name} carries no frames of Dask, which go over TCP instead: {error}")
            continue
        if library is not None:
            found[name] = library
            _stop_at_exit()
    return found


async def probe(carrier: _native.FrameCarrier, sent: bytes, expected: bytes, timeout_s: float) -> bool:
    """Return whether what both ends send first arrives.

    Args:
        carrier: of the connection.
        sent, expected: 16 bytes each.
        timeout_s: then it has not arrived.
    """
    loop = asyncio.get_running_loop()
    carrier.begin_probe(sent)
    until_s = loop.time() + timeout_s
    try:
        while (found := carrier.probe_found()) is None and loop.time() < until_s:
            await asyncio.sleep(_LOOK_S)
    finally:
        carrier.abandon_probe()
    return found == expected


@cache
def _warn(text: str) -> None:
    logger.warning(text)


@cache
def _stop_at_exit() -> None:
    atexit.register(_native.stop_carriers, _STOP_S)  # before MPI is finalized


_mpi: list[MpiCarriers] = []  # at most one: MPI can be started once


def _find_mpi() -> CarrierLibrary | None:
    if not _mpi and (world := MpiWorld.find()) is not None:
        _mpi.append(MpiCarriers(world))
    return _mpi[0] if _mpi and _mpi[0].is_running else None


@cache
def _find_ucx() -> CarrierLibrary:
    if (obstacle := UcxPeers.find_obstacle()) is not None:
        raise BackendUnavailable(obstacle)
    return UcxCarriers(UcxPeers())


_FIND: dict[str, Callable[[], CarrierLibrary | None]] = {"mpi": _find_mpi, "ucx": _find_ucx}
