"""Where the time and the bytes of communication went: exact totals by operation, size, algorithm and library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.comm.policy import total_nbytes
from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.operations import kind_names
from hocket.observe.analysis.totals import COMMUNICATION, RunTotals

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_KEY = ("kind", "size_class", "algorithm", "library", "is_foreign")


@dataclass(frozen=True)
class BreakdownRow:
    """All operations of one kind, size class, algorithm and library, of all ranks together.

    Args:
        op: name of the operation.
        least_nbytes, most_nbytes: the sizes of its class.
        algorithm: name of the schedule; "": the library's own algorithm.
        library: that carried it.
        is_foreign: whether the program called this library itself, and not hocket.
        num_ranks: size of the communicators; 0: unknown.
        count: number of operations, each rank counted.
        failed: how many of them failed.
        nbytes: their bytes.
        seconds: from their begin to their end, summed up; asynchronous operations may overlap.
        median_s, p99_s: of one operation, from bins of a factor of two, in the middle of the bin.
        bus_bandwidth: bytes per second over a link at the mean time: bytes of the whole array / seconds of one
            operation, times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter and all_to_all, 1 for
            broadcast, reduce and messages (nccl-tests, PERFORMANCE.md); None: other operations, or no bytes.

    Examples:
        >>> import sys
        >>> from hocket import observe
        >>> program = "import hocket as hk; [each.barrier() for each in [hk.init(backends='shm')] * 2]"
        >>> _ = observe.record_run([sys.executable, "-c", program], "run-to-divide")
        >>> totals = observe.totals_of(observe.open_run("run-to-divide"))
        >>> [(row.op, row.count, row.nbytes) for row in observe.breakdown(totals)]
        [('barrier', 2, 0)]
    """

    op: str
    least_nbytes: int
    most_nbytes: int
    algorithm: str
    library: str
    is_foreign: bool
    num_ranks: int
    count: int
    failed: int
    nbytes: int
    seconds: float
    median_s: float
    p99_s: float
    bus_bandwidth: float | None


def breakdown(totals: RunTotals) -> tuple[BreakdownRow, ...]:
    """Return the totals of all operations of the program, those with the most time first.

    Args:
        totals: from `totals_of`.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-of-no-operation")
        >>> observe.breakdown(observe.totals_of(observe.open_run("run-of-no-operation")))
        ()
    """
    import numpy as np

    of_program = np.isin(totals.rows["comm"], [*numbers_of_program(totals.communicators), -1])
    rows = totals.rows[(totals.rows["layer"] == COMMUNICATION) & of_program]
    sizes = np.array([*(each.size for each in totals.communicators), 0], np.int64)[rows["comm"]]
    keys = np.stack([*(rows[field].astype(np.int64) for field in _KEY), sizes], axis=1)
    unique, group = np.unique(keys, axis=0, return_inverse=True)
    found = [_row(totals, tuple(key), rows[group.reshape(-1) == place]) for place, key in enumerate(unique.tolist())]
    return tuple(sorted(found, key=lambda row: -row.seconds))


def whole_nbytes(op: str, nbytes: int, num_ranks: int, is_foreign: bool) -> int:
    """Return the bytes of the largest array of operations.

    Args:
        op: name of the operations.
        nbytes: as recorded: for hocket's own ones as in `Record.nbytes`, else what a rank contributes.
        num_ranks: number of ranks of the communicator.
        is_foreign: whether they are of another library.
    """
    if not is_foreign:
        return total_nbytes(op, nbytes, num_ranks)
    return nbytes * num_ranks if op in ("all_gather", "gather") else nbytes


def _row(totals: RunTotals, key: tuple[int, ...], rows: NDArray[np.void]) -> BreakdownRow:
    kind, size_class, algorithm, library, is_foreign, num_ranks = key
    op = kind_names()[kind]
    nbytes, seconds = int(rows["nbytes"].sum()), float(rows["seconds"].sum())
    median_s, p99_s = (quantile_of(rows, share) for share in (0.5, 0.99))
    whole = whole_nbytes(op, nbytes, num_ranks, bool(is_foreign))
    factor = bus_factor(op, num_ranks) if nbytes and seconds else None
    return BreakdownRow(
        op=op,
        least_nbytes=1 << size_class >> 1,
        most_nbytes=(1 << size_class) - 1,
        algorithm=totals.names[algorithm],
        library=totals.names[library],
        is_foreign=bool(is_foreign),
        num_ranks=num_ranks,
        count=int(rows["count"].sum()),
        failed=int(rows["failed"].sum()),
        nbytes=nbytes,
        seconds=seconds,
        median_s=median_s,
        p99_s=p99_s,
        bus_bandwidth=None if factor is None else whole / seconds * factor,
    )


def bus_factor(op: str, num_ranks: int) -> float | None:
    """Return what the bytes of the whole array per second are multiplied by to have those of a link; None: no factor.

    Args:
        op: name of the operation.
        num_ranks: number of ranks of the communicator.
    """
    if op in ("broadcast", "reduce", "send", "recv"):
        return 1.0
    if num_ranks < 2 or op not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        return None
    return (2 if op == "all_reduce" else 1) * (num_ranks - 1) / num_ranks


def quantile_of(rows: NDArray[np.void], share: float) -> float:
    """Return the duration below which this share of all durations of totals lies: the middle of its bin.

    Args:
        rows: of `RunTotals`.
        share: 0 to 1.
    """
    import numpy as np

    middles = rows["first_bin_s"][:, None] * 2.0 ** (np.arange(rows["bins"].shape[1]) + 0.5)
    order = np.argsort(middles, axis=None)
    counts = np.cumsum(rows["bins"].reshape(-1)[order])
    place = int(np.searchsorted(counts, share * counts[-1]))
    return float(np.clip(middles.reshape(-1)[order[place]], rows["least_s"].min(), rows["most_s"].max()))
