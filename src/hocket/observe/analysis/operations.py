"""The operations of all processes of a recorded run in one table, on the run's time axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from hocket import _native
from hocket.observe.activity import operation_name
from hocket.observe.analysis.communicators import RunCommunicator, RunNames
from hocket.trace import EVENT_STATES, FIRST_FOREIGN_KIND
from hocket.trace.record import ASYNC, END_UNKNOWN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.saved import ObservedRun, SavedProcess

RINGS = ("operations", "foreign")
"""Rings of operations: those of hocket, and those of other libraries."""
MESSAGES = ("send", "recv")
OPERATION_FIELDS = (
    ("process", "<i4"), ("comm", "<i4"), ("rank", "<i4"), ("number", "<i8"), ("kind", "|u1"), ("dtype", "|u1"),
    ("peer", "<i4"), ("tag", "<i8"), ("nbytes", "<i8"), ("begin", "<f8"), ("end", "<f8"), ("blocked", "<f8"),
    ("state", "|u1"), ("is_async", "|b1"), ("is_foreign", "|b1"), ("library", "<i4"), ("algorithm", "<i4"),
    ("weight", "<i8"),
)  # fmt: skip
"""Columns of `RunOperations.rows`."""
IN_FLIGHT = tuple(EVENT_STATES.index(state) for state in ("issued", "started", "waited"))
"""States of what had not completed."""
_NUM_KINDS = 256


@dataclass(frozen=True)
class RunOperations:
    """The operations of a run: collectives and messages of hocket, torch, MPI and NCCL.

    Args:
        rows: structured array with `OPERATION_FIELDS`, by begin. "process" is a place in `ObservedRun.processes`;
            "comm" one in `communicators`, -1 unknown; "rank" the process's rank in it; "number" that of the operation
            in its communicator; "dtype" a place in `hocket._native.DTYPE_NAMES`; "peer" a rank in the communicator, the
            root or the other side, -1 none; "tag" that of a message; "begin" and "end" seconds since the run began,
            "end" NaN while it is in flight or where the library did not report it; "blocked" seconds that callers
            waited, NaN unknown; "is_foreign" whether the program called another library than hocket; "library" and
            "algorithm" places in `names`; "weight" for how many operations the row stands.
        communicators: of the whole run.
        names: texts of libraries and algorithms; the first one is "", the library's own algorithm.

    Examples:
        >>> import sys
        >>> from hocket import observe
        >>> program = "import hocket as hk; hk.init(backends='shm').barrier()"
        >>> _ = observe.record_run([sys.executable, "-c", program], "run-of-a-barrier")
        >>> operations = observe.operations_of(observe.open_run("run-of-a-barrier"))
        >>> [operations.kind_names[row["kind"]] for row in operations.rows]
        ['barrier']
    """

    rows: NDArray[np.void]
    communicators: tuple[RunCommunicator, ...]
    names: tuple[str, ...]

    @property
    def kind_names(self) -> tuple[str, ...]:
        """Names of kinds by their number; unused numbers have the name ""."""
        return kind_names()

    @property
    def in_flight(self) -> NDArray[np.bool_]:
        """Whether each row had not completed when its process was last seen."""
        import numpy as np

        return np.isin(self.rows["state"], IN_FLIGHT)


def operations_of(run: ObservedRun) -> RunOperations:
    """Return the operations of all processes of a run.

    Args:
        run: from `open_run`.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-of-nothing")
        >>> len(observe.operations_of(observe.open_run("run-of-nothing")).rows)
        0
    """
    import numpy as np

    names = RunNames(run.processes)
    parts = [
        _rows(process, place, ring, names)
        for place, process in enumerate(run.processes)
        for ring in RINGS
        if ring in process.events and len(process.events[ring])
    ]
    rows = np.concatenate(parts) if parts else np.zeros(0, list(OPERATION_FIELDS))
    return RunOperations(rows[np.argsort(rows["begin"], kind="stable")], names.communicators, names.texts)


@cache
def kind_names() -> tuple[str, ...]:
    """Return the names of all kinds of operations by their number; unused numbers have the name ""."""
    last_foreign = FIRST_FOREIGN_KIND + len(_native.FOREIGN_NAMES)
    return tuple(
        operation_name("foreign", kind)
        if kind < len(_native.OP_NAMES) or FIRST_FOREIGN_KIND <= kind < last_foreign
        else ""
        for kind in range(_NUM_KINDS)
    )


def _rows(process: SavedProcess, place: int, ring: str, names: RunNames) -> NDArray[np.void]:
    import numpy as np

    events = process.events[ring]
    rows = np.zeros(len(events), list(OPERATION_FIELDS))
    names.fill(rows, events, place)
    rows["process"] = place
    rows["number"] = events["seq"]
    for field in ("kind", "dtype", "peer", "nbytes", "state"):
        rows[field] = events[field]
    is_message = np.isin(events["kind"], [_native.OP_NAMES.index(name) for name in MESSAGES])
    rows["tag"] = np.where(is_message, events["aux"].astype(np.int64), 0)
    rows["weight"] = np.int64(1) << events["weight_log2"].astype(np.int64)
    rows["is_foreign"] = ring == "foreign"
    rows["is_async"] = events["flags"] & ASYNC != 0
    rows["begin"] = process.clock.seconds(events["t_begin"])
    is_ended = (events["t_end"] > 0) & (events["flags"] & END_UNKNOWN == 0)
    rows["end"] = np.where(is_ended, process.clock.seconds(events["t_end"]), np.nan)
    # Only hocket counts how long callers of asynchronous operations waited.
    waited = events["blocked_ns"] * 1e-9 if ring == "operations" else np.nan
    rows["blocked"] = np.where(rows["is_async"], waited, rows["end"] - rows["begin"])
    return rows
