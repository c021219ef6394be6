"""How long a message between stages takes: measured between two ranks."""

from __future__ import annotations

import time

import torch

from hocket.comm import Communicator
from hocket.sim import Link

_SMALL, _LARGE = 64, 1 << 22  # bytes
_REPEATS = 10


def measure_link(comm: Communicator, timeout_s: float | None = None) -> Link:
    """Measure messages between ranks 0 and 1 there and back, each into a fresh array; called by all ranks.

    Returns:
        The link, the same on every rank; one that takes no time where there is one rank alone.
    """
    link = Link(0.0, 0.0)
    if comm.size > 1 and comm.rank < 2:
        small_s, large_s = (_measure(comm, nbytes, timeout_s) for nbytes in (_SMALL, _LARGE))
        beta_s = max(0.0, (large_s - small_s) / (_LARGE - _SMALL))
        link = Link(max(0.0, small_s - beta_s * _SMALL), beta_s)
    found: Link = comm.broadcast_object(link, 0)
    return found


def _measure(comm: Communicator, nbytes: int, timeout_s: float | None) -> float:
    """Seconds of one way; the fastest of some, as other work on the machine only adds."""
    sent = torch.ones(nbytes // 4)
    fastest_s = float("inf")
    other = 1 - comm.rank
    for _ in range(_REPEATS):
        begin_s = time.perf_counter()
        for sends in (comm.rank == 0, comm.rank != 0):
            if sends:
                comm.send(sent, other, timeout=timeout_s)
            else:
                sent = torch.empty(nbytes // 4)
                comm.recv(sent, other, timeout=timeout_s)
        fastest_s = min(fastest_s, (time.perf_counter() - begin_s) / 2)
    return fastest_s
