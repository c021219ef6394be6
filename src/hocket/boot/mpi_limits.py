"""How long ranks may wait for each other while MPI starts and ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Seconds of waiting before the job is ended or a message is printed.

    Args:
        grace_s: after the end of a rank that others wait for.
        timeout_s: in MPI_Init.
        named_after_s: in MPI_Init, before the missing ranks are named.
        keep_going: whether ranks may continue without failed ranks.
    """

    grace_s: float
    timeout_s: float
    named_after_s: float
    keep_going: bool = False
