"""Training of unchanged Keras models by `hocket.train`. Needs Keras 3 on the torch backend.

Names are loaded at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.keras.graph import graph_of_keras
    from hocket.keras.training import fit

__all__ = ["fit", "graph_of_keras"]

__getattr__ = lazy(__name__)
