"""Whether bytes from another process can be events: each number must mean something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket import _native
from hocket.trace.record import EVENT_STATES, NO_REDUCTION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FIRST_FOREIGN_KIND = 64
"""Operations of foreign libraries that hocket has not have kinds from this number on."""
_NUM_LAYERS = 6


def are_events(ring: str, events: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return for each of a structured array with `EVENT_FIELDS` whether it can be an event.

    Args:
        ring: name of the ring that has them.
        events: of any shape.

    Examples:
        >>> import os
        >>> with hk.init() as comm:
        ...     comm.barrier()
        ...     ring = hk.trace.find_recorders(os.getpid())[0].read().rings["operations"]
        >>> bool(hk.trace.are_events("operations", ring.events).all())
        True
    """
    import numpy as np

    reduction = events["reduce"]
    checked: NDArray[np.bool_] = (
        np.isin(events["kind"], _kinds(ring))
        & (events["dtype"] < len(_native.DTYPE_NAMES))
        & ((reduction < len(_native.REDUCE_NAMES)) | (reduction == NO_REDUCTION))
        & (events["state"] < len(EVENT_STATES))
        & (events["layer"] < _NUM_LAYERS)
    )
    if ring == "dask":
        checked &= events["backend"] < len(_native.DASK_PATH_NAMES)
    return checked


def _kinds(ring: str) -> list[int]:
    operations = range(len(_native.OP_NAMES))
    if ring == "foreign":
        return [*operations, *range(FIRST_FOREIGN_KIND, FIRST_FOREIGN_KIND + len(_native.FOREIGN_NAMES))]
    other = {
        "transfers": _native.TRANSFER_NAMES,
        "program": _native.PROGRAM_NAMES,
        "io": _native.IO_NAMES,
        "process": _native.PROCESS_NAMES,
        "dask": _native.DASK_NAMES,
    }
    return list(range(len(other[ring]))) if ring in other else list(operations)
