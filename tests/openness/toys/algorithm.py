"""A broadcast in which the root sends to all ranks in turn."""

from __future__ import annotations

import numpy as np

from hocket.collectives.registry import algorithm
from hocket.collectives.schedule import Schedule, Transfers, make_schedule
from hocket.sim import Link


def _seconds(link: Link, num_ranks: int, nbytes: float) -> float:
    return (num_ranks - 1) * link.message_s(nbytes)


@algorithm("broadcast", "toy", formula="(P - 1)(α + mβ)", seconds=_seconds)
def toy(num_ranks: int) -> Schedule:
    """One message per round."""
    rounds = (Transfers(np.array([0]), np.array([rank]), np.array([0])) for rank in range(1, num_ranks))
    return make_schedule("broadcast", num_ranks, 1, rounds)
