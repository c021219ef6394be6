"""The worker's part of an exchange: every worker of a host sends something to every other one, by one all_to_all."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from hocket.comm import Communicator
from hocket.dask.packing import pack, unpack
from hocket.errors import HocketError
from hocket.session import connect_ranks

logger = logging.getLogger(__name__)
_HOST = "one host"


@dataclass(frozen=True)
class Seat:
    """The place of a worker among those that exchange.

    Args:
        name: of their communicator; the same for all exchanges of these workers, until one fails.
        rank: number of this worker.
        size: number of workers.
        timeout_s: all others must have come within this time.
    """

    name: str
    rank: int
    size: int
    timeout_s: float


class _Seats:
    """The communicator of this process for the workers that exchanged last."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._name = ""
        self._comm: Communicator | None = None

    def communicator(self, seat: Seat) -> Communicator:
        """Return the communicator of a seat; connect to the other workers on the first call."""
        with self._lock:
            if self._comm is None or self._name != seat.name:
                self._leave()
                hosts = [_HOST] * seat.size
                self._comm = connect_ranks(seat.name, seat.rank, hosts, timeout=seat.timeout_s, backends="shm")
                self._name = seat.name
            return self._comm

    def leave(self) -> None:
        """Give the communicator up after an error."""
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        comm, self._comm = self._comm, None
        if comm is not None:
            with suppress(HocketError):  # others may have left it already
                comm.finalize()


_seats = _Seats()


def exchange(seat: Seat, outgoing: Sequence[Any]) -> list[Any]:
    """Send object r to the worker with rank r, and return the objects of all workers in their order.

    Args:
        seat: of this worker. All workers of its communicator make this call.
        outgoing: for each worker anything that can be pickled. What is for this worker itself is returned as it is.

    Raises:
        CommTimeout: some worker has not come in time.
        HocketError: some worker has ended, or failed.
    """
    try:
        packed, counts = pack([None if rank == seat.rank else each for rank, each in enumerate(outgoing)])
        comm = _seats.communicator(seat)
        in_counts, out_counts = np.array(counts, np.int64), np.empty(seat.size, np.int64)
        comm.all_to_all(out_counts, in_counts, timeout=seat.timeout_s)
        received = np.empty(int(out_counts.sum()), np.uint8)
        comm.all_to_allv(received, packed, out_counts.tolist(), counts, timeout=seat.timeout_s)
    except BaseException:  # whatever it is, the others must not wait for this worker
        _seats.leave()
        raise
    found = unpack(received, out_counts.tolist())
    found[seat.rank] = outgoing[seat.rank]
    return found
