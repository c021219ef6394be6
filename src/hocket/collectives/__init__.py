"""Collective algorithms as tables: verified, costed, simulated, executed and drawn.

Names are loaded when they are asked for: a program that names no algorithm does without NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.collectives.proof import verify
    from hocket.collectives.registry import Algorithm, algorithm, algorithms, find_algorithm
    from hocket.collectives.schedule import Schedule, Transfers, make_schedule

__all__ = [
    "Algorithm",
    "Schedule",
    "Transfers",
    "algorithm",
    "algorithms",
    "find_algorithm",
    "make_schedule",
    "verify",
]

_HOMES = {
    "Algorithm": "registry",
    "algorithm": "registry",
    "algorithms": "registry",
    "find_algorithm": "registry",
    "Schedule": "schedule",
    "Transfers": "schedule",
    "make_schedule": "schedule",
    "verify": "proof",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
