"""How long ranks may wait for each other while MPI starts and ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How long is waited, in seconds, before the job ends or something is said.

    Args:
        grace_s: from the end of a rank that others wait for.
        timeout_s: in MPI_Init.
        named_after_s: in MPI_Init, until those that are waited for are named.
        keep_going: whether ranks may go on without those that have failed.
    """

    grace_s: float
    timeout_s: float
    named_after_s: float
    keep_going: bool = False
