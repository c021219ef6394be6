"""Dask over shared memory: a communication protocol of `dask.distributed`.

Names are loaded at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.dask.backend import HocketBackend, MPIBackend
    from hocket.dask.local_cluster import LocalCluster

__all__ = ["HocketBackend", "LocalCluster", "MPIBackend"]

__getattr__ = lazy(__name__)
