"""The times of hocket's own collectives in a run, as the tuner takes them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hocket import _native
from hocket.comm.policy import CHOOSABLE, dtype_class
from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.operations import operations_of
from hocket.observe.analysis.waits import ALL_WAIT
from hocket.trace import EVENT_STATES
from hocket.tune.observations import Observation, Observations
from hocket.tune.policy import timed_as

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.saved import ObservedRun

_MOST_SAMPLES = 1000
_COMPLETED = EVENT_STATES.index("completed")
_KEY = ("comm", "kind", "dtype", "nbytes", "library", "algorithm")


def observations_of(run: ObservedRun, operations: RunOperations | None = None) -> Observations:
    """Return the times of hocket's own blocking collectives, for `hocket.tune.learn_from` and `regrets_of`.

    Of each collective counts the time on the rank that came last, which contains no waiting. Collectives that were not
    recorded on all ranks are left out, those with counts, which have no times of their own in a table, and those with a
    root, which a rank may leave before the others have come.

    Args:
        run: from `open_run`.
        operations: from `operations_of`, if they are known already.

    Examples:
        >>> import sys
        >>> from hocket import observe
        >>> program = "import hocket as hk; [each.barrier() for each in [hk.init(backends='shm')] * 10]"
        >>> _ = observe.record_run([sys.executable, "-c", program], "run-to-learn-from")
        >>> [(row.op, row.count) for row in observe.observations_of(observe.open_run("run-to-learn-from")).rows]
        [('barrier', 10)]
    """
    import numpy as np

    found = operations_of(run) if operations is None else operations
    rows = found.rows
    names = np.array(found.kind_names)
    kinds = [name for name in CHOOSABLE if timed_as(name) == name and name in ALL_WAIT]
    is_wanted = (
        np.isin(names[rows["kind"]], kinds)
        & np.isin(rows["comm"], numbers_of_program(found.communicators))
        & ~rows["is_foreign"]
        & ~rows["is_async"]
        & (rows["state"] == _COMPLETED)
        & (rows["weight"] == 1)
    )
    rows = rows[is_wanted]
    seconds: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for key, least_s in _collectives(rows, np.array([each.size for each in found.communicators] or [0])):
        seconds[key].append(least_s)
    joined: dict[tuple[str, str, int, int, int, str, str], list[float]] = defaultdict(list)
    for (comm, kind, dtype, nbytes, library, algorithm), times in seconds.items():
        communicator = found.communicators[comm]
        hosts = {run.processes[place].host for place in communicator.processes.values()}
        op = found.kind_names[kind]
        about = op, dtype_class(op, _native.DTYPE_NAMES[dtype]), communicator.size, len(hosts), nbytes
        joined[*about, found.names[library], found.names[algorithm]] += times
    return Observations(
        tuple(sorted({process.host for process in run.processes})),
        tuple(Observation(*key, tuple(times[-_MOST_SAMPLES:]), len(times)) for key, times in sorted(joined.items())),
    )


def _collectives(rows: NDArray[np.void], sizes: NDArray[np.int64]) -> list[tuple[tuple[int, ...], float]]:
    """The key of each collective that all ranks recorded, and the least time of a rank."""
    import numpy as np

    if not len(rows):
        return []
    order = np.lexsort((rows["number"], rows["comm"]))
    rows = rows[order]
    is_first = np.ones(len(rows), bool)
    is_first[1:] = (np.diff(rows["comm"]) != 0) | (np.diff(rows["number"]) != 0)
    starts = np.flatnonzero(is_first)
    counts = np.diff(np.append(starts, len(rows)))
    least = np.minimum.reduceat(rows["end"] - rows["begin"], starts)
    is_whole = (counts == sizes[rows["comm"][starts]]) & (least > 0)
    keys = np.stack([rows[field][starts].astype(np.int64) for field in _KEY], axis=1)
    return [
        (tuple(key), seconds) for key, seconds in zip(keys[is_whole].tolist(), least[is_whole].tolist(), strict=True)
    ]
