"""Two runs compared: which operations and regions became slower or faster, beyond their own spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hocket.comm.policy import format_nbytes
from hocket.errors import InvalidArgument
from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.operations import operations_of
from hocket.observe.analysis.ratios import ratio_interval
from hocket.observe.analysis.regions import regions_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.saved import ObservedRun

MOST_BLOCKS = 30


@dataclass(frozen=True)
class RunDifference:
    """Something that both runs did.

    Args:
        what: an operation with its size, library and algorithm, such as "all_reduce of 256 B to 512 B over shm between
            4 ranks", or a region, such as "region forward".
        before_s, after_s: seconds of one of them in each run: the median over time of the mean of all processes.
        ratio: after_s / before_s.
        low, high: an interval of the ratio that contains it with at least 95 %; None: too few of them for one.
        share: of the time of the second run's processes that all of them took, 0 to 1; what overlaps counts twice.

    Examples:
        >>> from hocket import observe
        >>> observe.RunDifference("region forward", 0.1, 0.12, 1.2, 1.15, 1.24, 0.3).verdict
        'slower'
    """

    what: str
    before_s: float
    after_s: float
    ratio: float
    low: float | None
    high: float | None
    share: float

    @property
    def verdict(self) -> Literal["slower", "faster", "not distinguishable"]:
        """The verdict by the interval: "not distinguishable" if it contains 1 or is unknown."""
        if self.low is not None and self.low > 1:
            return "slower"
        return "faster" if self.high is not None and self.high < 1 else "not distinguishable"


def compare_runs(before: ObservedRun, after: ObservedRun) -> tuple[RunDifference, ...]:
    """Return what both runs did, with the change of its time; first what takes the most time.

    Durations that follow each other are alike. So those of each process are divided into 30 blocks of consecutive ones;
    a block counts as the mean of the processes' medians, and the intervals are those of the median of all blocks.

    Args:
        before, after: from `open_run`.

    Raises:
        InvalidArgument: the runs have nothing in common.

    Examples:
        >>> import sys
        >>> from hocket import observe
        >>> program = "import hocket as hk; [each.barrier() for each in [hk.init(backends='shm')] * 100]"
        >>> for folder in ("run-before", "run-after"):
        ...     _ = observe.record_run([sys.executable, "-c", program], folder)
        >>> before, after = observe.open_run("run-before"), observe.open_run("run-after")
        >>> [each.what for each in observe.compare_runs(before, after)]
        ['barrier over shm between 1 ranks']
    """
    first, second = _durations(before), _durations(after)
    duration_s = sum(_seconds_of(process.series["time_ns"]) for process in after.processes) or 1.0
    found = [_difference(what, first[what], seconds, duration_s) for what, seconds in second.items() if what in first]
    if not found:
        raise InvalidArgument(
            f"{before.folder} and {after.folder} have no operation and no region in common: "
            f"{_some(first)} in the first one, {_some(second)} in the second one"
        )
    return tuple(sorted(found, key=lambda each: -each.share))


def _durations(run: ObservedRun) -> dict[str, list[NDArray[np.float64]]]:
    """By what it is, the durations of each process in the order of time."""
    import numpy as np

    found: dict[str, list[NDArray[np.float64]]] = {}
    operations = operations_of(run)
    of_program = np.isin(operations.rows["comm"], numbers_of_program(operations.communicators))
    rows = operations.rows[~np.isnan(operations.rows["end"]) & of_program]
    size_class = np.frexp(rows["nbytes"].astype(np.float64))[1]
    sizes = np.array([each.size for each in operations.communicators] or [0])[rows["comm"]]
    keys = np.stack([rows["kind"], size_class, rows["library"], rows["algorithm"], sizes, rows["process"]], axis=1)
    unique, group = np.unique(keys, axis=0, return_inverse=True)
    for place, (kind, bits, library, algorithm, size, _) in enumerate(unique.tolist()):
        of_sizes = f" of {format_nbytes(1 << bits - 1)} to {format_nbytes(1 << bits)}" if bits else ""
        through = f"{operations.names[library]} {operations.names[algorithm]}".strip()
        what = f"{operations.kind_names[kind]}{of_sizes} over {through} between {size} ranks"
        own = rows[group.reshape(-1) == place]
        found.setdefault(what, []).append(own["end"] - own["begin"])
    for process in run.processes:
        for name, begins, ends in regions_of(process):
            found.setdefault(f"region {name}", []).append(ends - begins)
    return found


def _difference(
    what: str, before: list[NDArray[np.float64]], after: list[NDArray[np.float64]], duration_s: float
) -> RunDifference:
    seconds = float(sum(each.sum() for each in after))
    return difference_of_blocks(what, _block_means(before), _block_means(after), seconds / duration_s)


def difference_of_blocks(what: str, before: Sequence[float], after: Sequence[float], share: float) -> RunDifference:
    """Return the difference of something that both runs did.

    Args:
        what: it is.
        before, after: seconds of one of them, in the order of time: of each block of consecutive ones the mean of the
            processes' medians, at most `MOST_BLOCKS`.
        share: of the time of the second run's processes.
    """
    import numpy as np

    before_s, after_s = (float(np.median(each)) for each in (before, after))
    low, high = ratio_interval(after, before) or (None, None)
    return RunDifference(what, before_s, after_s, after_s / before_s if before_s else float("nan"), low, high, share)


def _block_means(of_processes: list[NDArray[np.float64]]) -> list[float]:
    """Divide the durations of each process into blocks of consecutive ones; return of each block the mean of the
    processes' medians, so that it shows when one process becomes slower."""
    import numpy as np

    num_blocks = min(MOST_BLOCKS, max(map(len, of_processes)))
    blocks = zip(*(np.array_split(durations, num_blocks) for durations in of_processes), strict=True)
    return [float(np.mean([np.median(part) for part in block if len(part)])) for block in blocks]


def _seconds_of(times_ns: NDArray[np.int64]) -> float:
    return float(times_ns[-1] - times_ns[0]) * 1e-9 if len(times_ns) > 1 else 0.0


def _some(found: Mapping[str, object]) -> str:
    names = list(found)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "nothing"
