"""A barrier that says who did not come, in the words that programs written for gloo look for."""

from __future__ import annotations

from hocket.comm import Communicator
from hocket.errors import CommTimeout
from hocket.torch.options import wanted_backend

LEAST_LIMIT_S = 0.001  # a limit of zero seconds is that of one look


def monitored_barrier(communicator: Communicator, limit_s: float | None) -> None:
    """Wait for all ranks; every rank that waited in vain learns which others did not come.

    Args:
        communicator: of the ranks.
        limit_s: seconds; None: those of the communicator.

    Raises:
        CommTimeout: naming them, in gloo's words and in ours.
    """
    try:
        communicator.barrier(timeout=limit_s, backend=wanted_backend())
    except CommTimeout as error:
        raise CommTimeout(f"{_as_gloo_says(communicator.rank, error, limit_s)}: {error}", error.ranks) from error


def _as_gloo_says(rank: int, error: CommTimeout, limit_s: float | None) -> str:
    """gloo's rank 0 asks the others, one by one."""
    if rank != 0:
        waited = "successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0"
        return f"Rank {rank} {waited}"
    if limit_s == LEAST_LIMIT_S:
        return "Rank 0 timed out in monitoredBarrier"
    ranks = ", ".join(map(str, error.ranks))
    return f"Rank{'s' if len(error.ranks) > 1 else ''} {ranks} failed to pass monitoredBarrier"
