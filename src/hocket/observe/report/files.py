"""The files of a run that took the most time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.observe.activity import operation_name, target_of

if TYPE_CHECKING:
    from hocket.observe.saved import ObservedRun

_MOST_FILES = 20


@dataclass
class FileUse:
    """What all processes did with a file: as far as single events were saved."""

    name: str
    num_processes: int = 0
    num_calls: int = 0
    read_nbytes: int = 0
    written_nbytes: int = 0
    seconds: float = 0.0


def busiest_files(run: ObservedRun) -> list[FileUse]:
    """Return the files with the most time in calls, the first one with the most.

    Args:
        run: from `open_run`.
    """
    import numpy as np

    found: dict[str, FileUse] = {}
    for process in run.processes:
        events = process.events.get("io")
        if events is None or not len(events):
            continue
        names = {int(kind): operation_name("io", int(kind)) for kind in np.unique(events["kind"])}
        is_read, is_written = (
            np.isin(events["kind"], [kind for kind, name in names.items() if word in name])
            for word in ("read", "write")
        )
        seconds = np.where(
            events["t_end"] > 0, process.clock.seconds(events["t_end"]) - process.clock.seconds(events["t_begin"]), 0.0
        )
        weights = np.int64(1) << events["weight_log2"].astype(np.int64)
        _, first, target = np.unique(events["comm"], return_index=True, return_inverse=True)
        for place, event in enumerate(events[first]):
            own = target.reshape(-1) == place
            name = target_of(process.snapshot, "io", event)
            use = found.setdefault(name, FileUse(name))
            use.num_processes += 1
            use.num_calls += int(weights[own].sum())
            use.read_nbytes += int((events["nbytes"] * weights)[own & is_read].sum())
            use.written_nbytes += int((events["nbytes"] * weights)[own & is_written].sum())
            use.seconds += float((seconds * weights)[own].sum())
    return sorted(found.values(), key=lambda each: -each.seconds)[:_MOST_FILES]
