"""Collective algorithms as tables: verified, costed, simulated, executed and drawn."""

from hocket.collectives.link import Link
from hocket.collectives.registry import Algorithm, algorithm, algorithms, find_algorithm
from hocket.collectives.schedule import Schedule, Transfers, make_schedule
from hocket.collectives.verify import verify

__all__ = [
    "Algorithm",
    "Link",
    "Schedule",
    "Transfers",
    "algorithm",
    "algorithms",
    "find_algorithm",
    "make_schedule",
    "verify",
]
