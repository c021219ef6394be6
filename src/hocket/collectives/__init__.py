"""Collective algorithms as tables: verify, estimate, simulate, execute and draw them.

Names are loaded on first use, so a program that names no algorithm does not need NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.collectives.proof import verify
    from hocket.collectives.registry import Algorithm, algorithm, algorithms, find_algorithm
    from hocket.collectives.schedule import Schedule, Transfers, make_schedule
    from hocket.collectives.sparse.elements import ElementCodec
    from hocket.collectives.sparse.state import SparseState
    from hocket.collectives.sparse.sums import SparseSum, SparseWork

__all__ = [
    "Algorithm",
    "ElementCodec",
    "Schedule",
    "SparseState",
    "SparseSum",
    "SparseWork",
    "Transfers",
    "algorithm",
    "algorithms",
    "find_algorithm",
    "make_schedule",
    "verify",
]

__getattr__ = lazy(
    __name__,
    {
        "Algorithm": "registry",
        "algorithm": "registry",
        "algorithms": "registry",
        "find_algorithm": "registry",
        "Schedule": "schedule",
        "Transfers": "schedule",
        "make_schedule": "schedule",
        "ElementCodec": "sparse.elements",
        "SparseState": "sparse.state",
        "SparseSum": "sparse.sums",
        "SparseWork": "sparse.sums",
        "simulate": "",
        "verify": "proof",
    },
)
