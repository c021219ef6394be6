"""Whether communication is slower while files are read or written on the same host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.observe.analysis.intervals import IntervalSet
from hocket.observe.analysis.ratios import ratio_interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.analysis.waits import WaitStates
    from hocket.observe.saved import ObservedRun

_LEAST_SAMPLES = 20
_LEAST_RATIO = 1.1
_LEAST_SHARE = 0.1
"""I/O must cover this share of an operation's time, from the last arrival to its end, to count as at the same time."""
_NUM_SHIFTS = 40
"""Of the I/O in time: the controls."""
_SEED = 20261128


@dataclass(frozen=True)
class Contention:
    """A kind of collective that takes longer while there is I/O on its host.

    Args:
        host: its name.
        op: name of the collective.
        least_nbytes, most_nbytes: sizes of its class.
        library: that carried it.
        ratio: median of its time during I/O over the median without, from the arrival of the last rank.
        low, high: interval of that ratio, which contains it with at least 95 %.
        control: the largest ratio of 40 controls, in which the I/O is shifted in time; below `ratio`.
        num_during, num_without: numbers of collectives on both sides.
        seconds: by how much all collectives during I/O took longer than the median without, together.

    Examples:
        >>> from hocket import observe
        >>> observe.Contention("node-1", "all_reduce", 512, 1023, "gloo", 1.8, 1.6, 2.1, 1.05, 40, 60, 2.5).op
        'all_reduce'
    """

    host: str
    op: str
    least_nbytes: int
    most_nbytes: int
    library: str
    ratio: float
    low: float
    high: float
    control: float
    num_during: int
    num_without: int
    seconds: float


def contentions(run: ObservedRun, operations: RunOperations, waits: WaitStates) -> tuple[Contention, ...]:
    """Return the collectives that are slower during I/O, those that cost the most first.

    Compared are collectives of one kind, size class, library and host, with at least 20 on either side; each has the
    time until its last rank on the host ends. An effect counts if its whole interval is above 1.1 and if it is larger
    than all controls.

    Args:
        run: from `open_run`.
        operations: from `operations_of`.
        waits: from `wait_states`.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-without-contention")
        >>> run = observe.open_run("run-without-contention")
        >>> operations = observe.operations_of(run)
        >>> observe.contentions(run, operations, observe.wait_states(run, operations))
        ()
    """
    import numpy as np

    rows = operations.rows[waits.rows["row"]]
    if not len(rows):
        return ()
    arrival = np.full(int(waits.rows["group"].max()) + 1, -np.inf)
    np.maximum.at(arrival, waits.rows["group"], rows["begin"])
    begin, end = arrival[waits.rows["group"]], rows["end"]
    is_timed = ~np.isnan(end) & (end > begin)
    hosts = np.array([each.host for each in run.processes])[rows["process"]]
    size_class = np.frexp(rows["nbytes"].astype(np.float64))[1]
    found = []
    for host in np.unique(hosts):
        io = _io_of(run, str(host))
        is_here = is_timed & (hosts == host)
        keys = np.stack([rows["kind"], size_class, rows["library"]], axis=1)
        for kind, bits, library in np.unique(keys[is_here], axis=0).tolist():
            chosen = np.flatnonzero(is_here & (keys == (kind, bits, library)).all(axis=1))
            # Ranks of one collective end at about the same time, and count once.
            order = chosen[np.lexsort((end[chosen], waits.rows["group"][chosen]))]
            is_last = np.diff(waits.rows["group"][order], append=-1) != 0
            about = str(host), operations.kind_names[kind], 1 << bits >> 1, (1 << bits) - 1, operations.names[library]
            found.append(_compare(about, begin[order[is_last]], end[order[is_last]], io))
    shown = [each for each in found if each is not None]
    return tuple(sorted(shown, key=lambda each: -each.seconds))


def _io_of(run: ObservedRun, host: str) -> IntervalSet:
    """When files were read or written on a host."""
    import numpy as np

    parts = [
        process.clock.seconds(np.stack([own["t_begin"], own["t_end"]]))
        for process in run.processes
        if process.host == host and "io" in process.events
        for events in (process.events["io"],)
        for own in (events[(events["t_end"] > 0) & (events["nbytes"] > 0)],)
    ]
    begins, ends = np.concatenate([np.zeros((2, 0)), *parts], axis=1)
    return IntervalSet(begins, ends)


def _compare(
    about: tuple[str, str, int, int, str], begin: NDArray[np.float64], end: NDArray[np.float64], io: IntervalSet
) -> Contention | None:
    """Compare operations during I/O with the others; None: no effect is shown."""
    import numpy as np

    seconds = end - begin
    is_during = _are_during(begin, end, io, 0.0)
    during, without = seconds[is_during], seconds[~is_during]
    if min(len(during), len(without)) < _LEAST_SAMPLES:
        return None
    ratio = float(np.median(during) / np.median(without))
    if ratio <= _LEAST_RATIO:
        return None
    draw = np.random.default_rng(_SEED)
    low, high = ratio_interval(during.tolist(), without.tolist()) or (0.0, np.inf)
    span = float(end.max() - begin.min())
    controls = []
    for shift in draw.uniform(0.05, 0.95, _NUM_SHIFTS) * span:
        shifted = _are_during(begin, end, io, float(shift))
        if min(np.count_nonzero(shifted), np.count_nonzero(~shifted)) > 0:
            controls.append(float(np.median(seconds[shifted]) / np.median(seconds[~shifted])))
    control = max(controls, default=np.inf)  # I/O all the time has no control
    if low <= _LEAST_RATIO or control >= ratio:
        return None
    lost_s = max(float((during - np.median(without)).sum()), 0.0)
    return Contention(*about, ratio, low, high, control, len(during), len(without), lost_s)


def _are_during(
    begin: NDArray[np.float64], end: NDArray[np.float64], io: IntervalSet, shift: float
) -> NDArray[np.bool_]:
    """Whether there is I/O during each operation; `shift` moves the I/O, what moves out of the run comes in again."""
    import numpy as np

    first, last = float(begin.min()), float(end.max())
    at = first + (begin - first - shift) % (last - first)
    return np.asarray(io.covered(at, at + (end - begin)) >= _LEAST_SHARE * (end - begin))
