"""Exact totals of all processes of a recorded run in one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.observe.analysis.communicators import RunCommunicator, RunNames
from hocket.trace.region import FIRST_TIME_BIN, NUM_TIME_BINS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.saved import ObservedRun, SavedProcess

COMMUNICATION, TRANSFER = 0, 1
"""Values of "layer"."""
TOTAL_FIELDS = (
    ("process", "<i4"), ("comm", "<i4"), ("rank", "<i4"), ("is_foreign", "|b1"), ("layer", "|u1"), ("kind", "|u1"),
    ("peer", "<i4"), ("size_class", "|u1"), ("library", "<i4"), ("algorithm", "<i4"), ("count", "<i8"),
    ("failed", "<i8"), ("nbytes", "<i8"), ("seconds", "<f8"), ("least_s", "<f8"), ("most_s", "<f8"),
    ("bins", "<i8", NUM_TIME_BINS), ("first_bin_s", "<f8"),
)  # fmt: skip
"""Columns of `RunTotals.rows`."""


@dataclass(frozen=True)
class RunTotals:
    """The totals of a run; they contain the operations that were not recorded one by one, too.

    Args:
        rows: structured array with `TOTAL_FIELDS`, one row for each process, communicator, kind, peer, size class,
            library and algorithm. "is_foreign" says that the program called another library than hocket; "layer" is 0
            for operations, 1 for transfers of schedules; a size of class k has k bits; "bins" counts durations: bin b
            is from ``first_bin_s * 2**b`` to less than twice that, ends are open.
            The other columns are those of `RunOperations`.
        communicators: of the whole run.
        names: texts of libraries and algorithms.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-of-no-totals")
        >>> len(observe.totals_of(observe.open_run("run-of-no-totals")).rows)
        0
    """

    rows: NDArray[np.void]
    communicators: tuple[RunCommunicator, ...]
    names: tuple[str, ...]


def totals_of(run: ObservedRun) -> RunTotals:
    """Return the totals of operations and transfers of all processes of a run.

    Args:
        run: from `open_run`.

    Examples:
        >>> import sys
        >>> from hocket import observe
        >>> program = "import hocket as hk; [each.barrier() for each in [hk.init(backends='shm')] * 2]"
        >>> _ = observe.record_run([sys.executable, "-c", program], "run-of-two-barriers")
        >>> observe.totals_of(observe.open_run("run-of-two-barriers")).rows["count"].sum()
        np.int64(2)
    """
    import numpy as np

    names = RunNames(run.processes)
    parts = [_rows(process, place, names) for place, process in enumerate(run.processes)]
    rows = np.concatenate([np.zeros(0, list(TOTAL_FIELDS)), *parts])
    return RunTotals(rows, names.communicators, names.texts)


def _rows(process: SavedProcess, place: int, names: RunNames) -> NDArray[np.void]:
    import numpy as np

    histograms = process.snapshot.histograms
    is_wanted = np.isin(histograms["layer"], (COMMUNICATION, TRANSFER)) & (histograms["count"] > 0)
    is_foreign = np.arange(len(histograms)) >= process.snapshot.num_own_histograms
    histograms = histograms[is_wanted]
    rows = np.zeros(len(histograms), list(TOTAL_FIELDS))
    if not len(rows):
        return rows
    names.fill(rows, histograms, place)
    rows["process"] = place
    rows["is_foreign"] = is_foreign[is_wanted]
    for field in ("layer", "kind", "peer", "size_class", "count", "failed", "nbytes", "bins"):
        rows[field] = histograms[field]
    s_per_tick = _seconds_per_tick(process)
    for field, ticks in (("seconds", "ticks"), ("least_s", "least_ticks"), ("most_s", "most_ticks")):
        rows[field] = histograms[ticks] * s_per_tick
    rows["first_bin_s"] = 2**FIRST_TIME_BIN * s_per_tick
    return rows


def _seconds_per_tick(process: SavedProcess) -> float:
    begin = process.snapshot.anchor[0]
    num_ticks = 1 << 32  # about a second
    return float(process.clock.seconds(begin + num_ticks) - process.clock.seconds(begin)) / num_ticks
