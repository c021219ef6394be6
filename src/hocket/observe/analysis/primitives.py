"""Which operations each job, host or process used most: by size, blocking or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.errors import InvalidArgument
from hocket.observe.analysis.operations import operations_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.saved import ObservedRun

GROUPS = ("job", "host", "process")


@dataclass(frozen=True)
class PrimitiveUse:
    """Operations of one kind and size that a job, a host or a process has used.

    Args:
        group: what used them: "job 0", the name of a host, or "rank 3", for processes without a rank "process 4711".
        op: name of the operations.
        least_nbytes, most_nbytes: their sizes, from one power of two to the next; both 0: without data.
        is_async: whether the caller did not wait for them when it issued them.
        count: how many.
        nbytes: of all.
        seconds: of those that completed, from issue to end.
        blocked_s: how long callers waited for them; NaN: their library does not say.

    Examples:
        >>> from hocket import observe
        >>> observe.PrimitiveUse("node-1", "all_reduce", 1024, 2047, False, 10, 10240, 0.5, 0.5).op
        'all_reduce'
    """

    group: str
    op: str
    least_nbytes: int
    most_nbytes: int
    is_async: bool
    count: int
    nbytes: int
    seconds: float
    blocked_s: float


def primitives(run: ObservedRun, by: str = "host") -> tuple[PrimitiveUse, ...]:
    """Return how much each operation was used, the one that took longest first.

    Counted are the operations that were recorded one by one, with what each of them stands for; `breakdown` has exact
    totals also where events were overwritten, but does not tell blocking operations from others.

    Args:
        run: from `open_run`.
        by: "job", "host" or "process".

    Raises:
        InvalidArgument: `by` is something else.

    Examples:
        >>> import sys
        >>> from hocket import observe
        >>> program = "import hocket as hk; hk.init(backends='shm').barrier()"
        >>> _ = observe.record_run([sys.executable, "-c", program], "run-of-a-primitive")
        >>> [(each.op, each.count) for each in observe.primitives(observe.open_run("run-of-a-primitive"), by="job")]
        [('barrier', 1)]
    """
    import numpy as np

    if by not in GROUPS:
        raise InvalidArgument(f"by must be one of {', '.join(GROUPS)}, not {by!r:.40}")
    operations = operations_of(run)
    rows = operations.rows
    names, group = _groups(run, operations, by)
    size_class = np.where(rows["nbytes"] > 0, np.frexp(rows["nbytes"].astype(np.float64))[1], 0)
    keys = np.stack([group, rows["kind"].astype(np.int64), size_class, rows["is_async"].astype(np.int64)], axis=1)
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    place, weight = inverse.reshape(-1), rows["weight"].astype(np.float64)
    seconds = np.nan_to_num(rows["end"] - rows["begin"]) * weight

    def total(values: NDArray[np.float64]) -> list[float]:
        found: list[float] = np.bincount(place, values, len(unique)).tolist()
        return found

    columns = zip(
        unique.tolist(), total(weight), total(rows["nbytes"] * weight), total(seconds), total(rows["blocked"] * weight),
        strict=True,
    )  # fmt: skip
    found = [
        PrimitiveUse(names[number], operations.kind_names[kind], 1 << bits >> 1, (1 << bits) - 1, bool(is_async),
                     round(count), round(nbytes), taken_s, blocked_s)
        for (number, kind, bits, is_async), count, nbytes, taken_s, blocked_s in columns
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda each: (-each.seconds, each.group, each.op, each.least_nbytes)))


def _groups(run: ObservedRun, operations: RunOperations, by: str) -> tuple[list[str], NDArray[np.int64]]:
    """The names of groups, and the number of that of each row."""
    import numpy as np

    if by == "job":
        jobs = np.array([*(each.job for each in operations.communicators), -1], np.int64)[operations.rows["comm"]]
        numbers, group = np.unique(jobs, return_inverse=True)
        return [f"job {each}" if each >= 0 else "no job" for each in numbers.tolist()], group.reshape(-1)
    owners = [each.snapshot.owner for each in run.processes]
    texts = [
        each.host if by == "host" else f"process {owner.pid}" if owner.rank is None else f"rank {owner.rank}"
        for each, owner in zip(run.processes, owners, strict=True)
    ]
    if by == "process":  # two jobs may have the same ranks
        texts = [f"{text} ({owner.pid} on {each.host})" if texts.count(text) > 1 else text
                 for text, each, owner in zip(texts, run.processes, owners, strict=True)]  # fmt: skip
    names = sorted(set(texts))
    places = np.array([*map(names.index, texts), -1], np.int64)
    return names, places[operations.rows["process"]]
