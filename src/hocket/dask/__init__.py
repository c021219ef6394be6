"""Dask over shared memory: a communication protocol of `dask.distributed`, and exchanges among all its workers.

Names are loaded at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.dask.arrays import rechunk, transpose
    from hocket.dask.backend import HocketBackend, MPIBackend
    from hocket.dask.explanation import ExchangeExplanation, explain
    from hocket.dask.local_cluster import LocalCluster
    from hocket.dask.tables import merge

__all__ = [
    "ExchangeExplanation", "HocketBackend", "LocalCluster", "MPIBackend", "explain", "merge", "rechunk", "transpose",
]  # fmt: skip

__getattr__ = lazy(__name__)
