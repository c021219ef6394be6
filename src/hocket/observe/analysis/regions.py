"""The regions of the program in recorded runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hocket.observe.activity import operation_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.saved import SavedProcess


def regions_of(process: SavedProcess) -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Yield the name of each region of a process, and the seconds since the run began at which it began and ended.

    Args:
        process: of a run.
    """
    import numpy as np

    events = process.events.get("program")
    if events is None or not len(events):
        return
    is_region = np.array([operation_name("program", int(kind)) == "region" for kind in events["kind"]])
    events = events[is_region & (events["t_end"] > 0)]
    for ident in np.unique(events["comm"]):
        own = events[events["comm"] == ident]
        name = process.snapshot.names.get(("region", int(ident), 0), f"region {ident}")
        yield name, process.clock.seconds(own["t_begin"]), process.clock.seconds(own["t_end"])
