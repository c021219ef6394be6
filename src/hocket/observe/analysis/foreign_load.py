"""How much of the hosts' processors was taken by programs that the run does not contain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.saved import ObservedRun
    from hocket.observe.series import SavedSeries

_BUSY = ("cpu_user_s", "cpu_nice_s", "cpu_system_s", "cpu_irq_s", "cpu_softirq_s", "cpu_steal_s")
_ALL = (*_BUSY, "cpu_idle_s", "cpu_iowait_s")


@dataclass(frozen=True)
class ForeignLoad:
    """The processor time of a host that its recorded processes did not use.

    Args:
        host: its name.
        seconds: between its samples, including what the hypervisor took.
        share: of the time of all its processors, 0 to 1.

    Examples:
        >>> from hocket import observe
        >>> observe.ForeignLoad("node-1", 6.0, 0.3).share
        0.3
    """

    host: str
    seconds: float
    share: float


def foreign_loads(run: ObservedRun) -> tuple[ForeignLoad, ...]:
    """Return the foreign load of each host; a host with fewer than two samples is left out.

    Args:
        run: from `open_run`.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["sleep", "0.3"], "run-of-sleep", interval_s=0.1)
        >>> [load.share <= 1 for load in observe.foreign_loads(observe.open_run("run-of-sleep"))]
        [True]
    """
    found = (_load(run, series) for series in run.host_series if series.source == "host")
    return tuple(each for each in found if each is not None)


def _load(run: ObservedRun, series: SavedSeries) -> ForeignLoad | None:
    import numpy as np

    rows = series.rows
    if len(rows) < 2 or any(name not in (rows.dtype.names or ()) for name in _ALL):
        return None
    first, last = rows[0], rows[-1]
    busy, total = (sum(float(last[name] - first[name]) for name in names) for names in (_BUSY, _ALL))
    if not np.isfinite(busy + total) or total <= 0:
        return None
    own = sum(
        _cpu_between(process.series, int(first["time_ns"]), int(last["time_ns"]))
        for process in run.processes
        if process.host == series.host
    )
    seconds = max(busy - own, 0.0)
    return ForeignLoad(series.host, seconds, min(seconds / total, 1.0))


def _cpu_between(rows: NDArray[np.void], begin_ns: int, end_ns: int) -> float:
    """Seconds of CPU that a process used between two moments; before its first sample it had used none."""
    import numpy as np

    known = rows[~np.isnan(rows["cpu_s"])]
    if not len(known):
        return 0.0
    before, until = (np.interp(moment, known["time_ns"], known["cpu_s"], left=0.0) for moment in (begin_ns, end_ns))
    return float(until - before)
