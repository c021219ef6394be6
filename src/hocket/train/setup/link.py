"""The time of a message between stages, measured between two ranks."""

from __future__ import annotations

import time

import torch

from hocket.comm import Communicator
from hocket.sim import Link

_SMALL, _LARGE = 64, 1 << 22  # bytes
_REPEATS = 10


def measure_link(comm: Communicator, timeout_s: float | None = None) -> Link:
    """Measure the round trip of messages between ranks 0 and 1, each into a new array; called by all ranks.

    Args:
        comm: a communicator of all ranks.
        timeout_s: timeout of each message in seconds; None: the timeout of the communicator.

    Returns:
        The link, equal on all ranks; with one rank, a link whose messages take no time.

    Examples:
        >>> link = hk.train.measure_link(comm)
        >>> link.alpha_s > 0 or link.beta_s > 0
        True
    """
    link = Link(0.0, 0.0)
    if comm.size > 1 and comm.rank < 2:
        small_s, large_s = (_measure(comm, nbytes, timeout_s) for nbytes in (_SMALL, _LARGE))
        beta_s = max(0.0, (large_s - small_s) / (_LARGE - _SMALL))
        link = Link(max(0.0, small_s - beta_s * _SMALL), beta_s)
    agreed: Link = comm.broadcast_object(link, 0)
    return agreed


def _measure(comm: Communicator, nbytes: int, timeout_s: float | None) -> float:
    """Return the seconds of one message: the minimum of several, since other work on the machine only adds time."""
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
