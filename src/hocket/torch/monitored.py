"""A barrier whose error names the missing ranks, in the words that programs written for gloo search for."""

from __future__ import annotations

from hocket.comm import Communicator
from hocket.errors import CommTimeout
from hocket.torch.options import requested_backend

LEAST_LIMIT_S = 0.001  # stands for a limit of zero seconds: the operation is polled once


def monitored_barrier(communicator: Communicator, limit_s: float | None) -> None:
    """Wait for all ranks; after the timeout, the error on every waiting rank names the missing ranks.

    Args:
        communicator: the communicator of the ranks.
        limit_s: timeout in seconds; None: the timeout of the communicator.

    Raises:
        CommTimeout: ranks are missing; the message has gloo's words and hocket's.
    """
    try:
        communicator.barrier(timeout=limit_s, backend=requested_backend())
    except CommTimeout as error:
        raise CommTimeout(f"{_words_of_gloo(communicator.rank, error, limit_s)}: {error}", error.ranks) from error


def _words_of_gloo(rank: int, error: CommTimeout, limit_s: float | None) -> str:
    """Return gloo's message. In gloo, rank 0 waits for a message of every other rank, one rank after the other."""
    if rank != 0:
        waited = "successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0"
        return f"Rank {rank} {waited}"
    if limit_s == LEAST_LIMIT_S:
        return "Rank 0 timed out in monitoredBarrier"
    ranks = ", ".join(map(str, error.ranks))
    return f"Rank{'s' if len(error.ranks) > 1 else ''} {ranks} failed to pass monitoredBarrier"
