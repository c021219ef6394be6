"""Whether a message is small enough to be packed at once, rather than in a thread.

Dask looks for that through the whole message, which takes as long as packing a small one three times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from distributed.comm import utils
from distributed.protocol.serialize import Serialize

_FIXED = (int, float, bool, type(None))
_MOST_ITEMS = 100


def is_surely_small(message: Any) -> bool:
    """Return True only if a message has fewer bytes than one that Dask packs in a thread (`distributed.comm.offload`).

    False says nothing: then Dask looks. Known are numbers, texts, bytes and arrays in dictionaries, and lists of these.
    """
    if type(message) is list:
        total = sum(_nbytes_of(each) for each in message) if len(message) <= _MOST_ITEMS else np.inf
    else:
        total = _nbytes_of(message)
    return total < (utils.OFFLOAD_THRESHOLD or 0)


def _nbytes_of(message: Any) -> float:
    """Return at least the bytes of the values of a dictionary; infinity if that takes long to find out."""
    if type(message) is not dict or len(message) > _MOST_ITEMS:
        return np.inf
    total = 0
    for value in message.values():
        kind = type(value)
        if kind in _FIXED:
            continue
        if kind is Serialize and type(value.data) is np.ndarray and not value.data.dtype.hasobject:
            total += value.data.nbytes
        elif kind is str:
            total += 4 * len(value)
        elif kind is bytes:
            total += len(value)
        else:
            return np.inf
    return total
