"""Keras models, unchanged, trained by `hocket.train`. Needs Keras 3 on the torch backend.

Names are loaded when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.keras.fitting import fit
    from hocket.keras.graph import graph_of_keras

__all__ = ["fit", "graph_of_keras"]

_HOMES = {"fit": "fitting", "graph_of_keras": "graph"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
