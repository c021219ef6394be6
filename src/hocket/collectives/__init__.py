"""Collective algorithms as tables: verify, estimate, simulate, execute and draw them.

Names are loaded on first use, so a program that names no algorithm does not need NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.collectives.compressed.compressor import CompressedSum, Compressor
    from hocket.collectives.compressed.largest import Dgc, OkTopk
    from hocket.collectives.compressed.power_sgd import PowerSgd
    from hocket.collectives.compressed.quantizers import Cast, OneBit, Qsgd, Zfp
    from hocket.collectives.compressed.registry import compressor, compressors
    from hocket.collectives.proof import verify
    from hocket.collectives.registry import Algorithm, algorithm, algorithms, find_algorithm
    from hocket.collectives.residual import ResidualState
    from hocket.collectives.schedule import Schedule, Transfers, make_schedule
    from hocket.collectives.sparse.elements import ElementCodec
    from hocket.collectives.sparse.sums import SparseSum
    from hocket.collectives.work import SumWork

__all__ = [
    "Algorithm",
    "Cast",
    "CompressedSum",
    "Compressor",
    "Dgc",
    "ElementCodec",
    "OkTopk",
    "OneBit",
    "PowerSgd",
    "Qsgd",
    "Schedule",
    "ResidualState",
    "SparseSum",
    "SumWork",
    "Transfers",
    "Zfp",
    "algorithm",
    "algorithms",
    "compressor",
    "compressors",
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
        "CompressedSum": "compressed.compressor",
        "Compressor": "compressed.compressor",
        "Dgc": "compressed.largest",
        "OkTopk": "compressed.largest",
        "PowerSgd": "compressed.power_sgd",
        **dict.fromkeys(("Cast", "OneBit", "Qsgd", "Zfp"), "compressed.quantizers"),
        **dict.fromkeys(("compressor", "compressors"), "compressed.registry"),
        "ElementCodec": "sparse.elements",
        "ResidualState": "residual",
        "SparseSum": "sparse.sums",
        "SumWork": "work",
        "simulate": "",
        "verify": "proof",
    },
)
