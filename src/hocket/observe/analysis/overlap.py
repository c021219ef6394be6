"""How much of one layer's time was hidden behind another one: of communication behind regions, of I/O behind either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.errors import InvalidArgument
from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.intervals import IntervalSet
from hocket.observe.analysis.operations import operations_of
from hocket.observe.analysis.regions import regions_of
from hocket.observe.analysis.stragglers import io_of
from hocket.suggestions import check_known

if TYPE_CHECKING:
    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.saved import ObservedRun

OVERLAP_LAYERS = ("communication", "I/O", "regions")
"""Operations from begin to end, calls of I/O, and the regions of the program."""


@dataclass(frozen=True)
class LayerOverlap:
    """Two layers of one process.

    Args:
        process: place in `ObservedRun.processes`.
        seconds: in which the first layer was active.
        other_s: in which the second one was.
        both_s: in which both were.

    Examples:
        >>> from hocket import observe
        >>> overlap = observe.LayerOverlap(0, 2.0, 5.0, 1.5)
        >>> overlap.share, overlap.exposed_s
        (0.75, 0.5)
    """

    process: int
    seconds: float
    other_s: float
    both_s: float

    @property
    def share(self) -> float:
        """Of the first layer's time, how much was hidden behind the second one; NaN: it was never active."""
        return self.both_s / self.seconds if self.seconds else float("nan")

    @property
    def exposed_s(self) -> float:
        """Seconds of the first layer without the second one."""
        return self.seconds - self.both_s


def overlaps(
    run: ObservedRun, layer: str = "communication", other: str = "regions", *, region: str | None = None,
    operations: RunOperations | None = None,
) -> tuple[LayerOverlap, ...]:  # fmt: skip
    """Return for each process in which the first layer was active how much of it the second one hid.

    Args:
        run: from `open_run`.
        layer: "communication", "I/O" or "regions".
        other: another one of them.
        region: name of the only region that counts, for example "backward"; None: all of them.
        operations: from `operations_of`, if they are known already.

    Raises:
        InvalidArgument: a layer is unknown, both are the same, or no process has the region.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-without-overlap")
        >>> observe.overlaps(observe.open_run("run-without-overlap"))
        ()
    """
    for each in (layer, other):
        check_known("layer", each, OVERLAP_LAYERS)
    if layer == other:
        raise InvalidArgument(f'the layers must be two different ones, not "{layer}" twice')
    layers = LayerTimes(run, operations_of(run) if operations is None else operations, region)
    found = []
    for process in range(len(run.processes)):
        mine, theirs = layers.of(process, layer), layers.of(process, other)
        if mine.seconds:
            found.append(LayerOverlap(process, mine.seconds, theirs.seconds, mine.overlap(theirs)))
    return tuple(found)


class LayerTimes:
    """When each layer of a process was active.

    Args:
        run: from `open_run`.
        operations: from `operations_of`.
        region: name of the only region that counts; None: all of them.

    Raises:
        InvalidArgument: no process has the region.
    """

    def __init__(self, run: ObservedRun, operations: RunOperations, region: str | None) -> None:
        self._run = run
        self._operations = operations
        self._region = region
        if region is not None:
            names = {name for process in run.processes for name, *_ in regions_of(process)}
            check_known("region", region, sorted(names))

    def of(self, process: int, layer: str) -> IntervalSet:
        """Return the times of a layer of a process."""
        import numpy as np

        if layer == "I/O":
            return io_of(self._run.processes[process])
        if layer == "communication":
            rows = self._operations.rows
            of_program = numbers_of_program(self._operations.communicators)
            own = rows[(rows["process"] == process) & np.isin(rows["comm"], [*of_program, -1])]
            return IntervalSet(own["begin"], own["end"])
        parts = [times for name, *times in regions_of(self._run.processes[process]) if self._region in (None, name)]
        if not parts:
            return IntervalSet([], [])
        return IntervalSet(*(np.concatenate([part[end] for part in parts]) for end in range(2)))
