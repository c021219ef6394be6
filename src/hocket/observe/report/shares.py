"""What each process did over time, in equal parts of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.intervals import IntervalSet
from hocket.observe.analysis.stragglers import io_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.analysis.waits import WaitStates
    from hocket.observe.saved import ObservedRun, SavedProcess

LAYER_COLORS = {
    "waiting for a late rank": "#d1495b", "communication": "#2a78b8", "I/O": "#3d8a5a",
    "asynchronous communication alone": "#a9cbe5", "everything else": "#e4e1d8",
}  # fmt: skip
"""What a process did, the first that applies; the rest of its life is computation, sleep and waits of other kinds."""
_NUM_PARTS = 1200


@dataclass(frozen=True)
class TimeShares:
    """Shares of time by process and part of the run.

    Args:
        names: of the processes.
        seconds: length of the run.
        by_layer: of each layer in `LAYER_COLORS`, of shape (processes, parts): how much of each part of the run it
            took, 0 to 1.
    """

    names: tuple[str, ...]
    seconds: float
    by_layer: dict[str, NDArray[np.float64]]


def time_shares(run: ObservedRun, operations: RunOperations, waits: WaitStates, places: list[int]) -> TimeShares:
    """Return what chosen processes did over time.

    Args:
        run: from `open_run`.
        operations: from `operations_of`.
        waits: from `wait_states`.
        places: of the processes in `ObservedRun.processes`.
    """
    import numpy as np

    lives = [_life(run.processes[place]) for place in places]
    end_s = max((end for _, end in lives), default=0.0) or 1.0
    edges = np.linspace(0.0, end_s, _NUM_PARTS + 1)
    shares = {layer: np.zeros((len(places), _NUM_PARTS)) for layer in LAYER_COLORS}
    for row, (place, life) in enumerate(zip(places, lives, strict=True)):
        for layer, covered in _layers(run, operations, waits, place, life, edges).items():
            shares[layer][row] = covered * _NUM_PARTS / end_s
    return TimeShares(tuple(name_of_process(run, place) for place in places), end_s, shares)


def name_of_process(run: ObservedRun, place: int) -> str:
    """Return how a process is called in pictures and tables."""
    process = run.processes[place]
    owner = process.snapshot.owner
    own = f"process {owner.pid}" if owner.rank is None else f"rank {owner.rank}"
    return f"{own}, {process.host}" if len({each.host for each in run.processes}) > 1 else own


def _layers(
    run: ObservedRun, operations: RunOperations, waits: WaitStates, place: int, life: tuple[float, float],
    edges: NDArray[np.float64],
) -> dict[str, NDArray[np.float64]]:  # fmt: skip
    """Seconds of each layer in each part; a layer counts where none of those before it is active."""
    import numpy as np

    rows = operations.rows
    of_program = [*numbers_of_program(operations.communicators), -1]
    is_own = (rows["process"] == place) & np.isin(rows["comm"], of_program)
    ends = np.where(np.isnan(rows["end"]), life[1], rows["end"])
    blocking, background = is_own & ~rows["is_async"], is_own & rows["is_async"]
    waited = waits.rows[(waits.rows["process"] == place) & ~rows["is_async"][waits.rows["row"]]]
    begin = rows["begin"][waited["row"]]
    io = io_of(run.processes[place])
    parts = [
        (begin, begin + waited["wait"]),
        (rows["begin"][blocking], ends[blocking]),
        (io.begins, io.ends),
        (rows["begin"][background], ends[background]),
        ([life[0]], [life[1]]),
    ]
    found, before = {}, np.zeros(len(edges) - 1)
    for number, layer in enumerate(LAYER_COLORS):
        begins, lasts = (np.concatenate([part[end] for part in parts[: number + 1]]) for end in range(2))
        covered = IntervalSet(begins, lasts).covered(edges[:-1], edges[1:])
        found[layer] = covered - before
        before = covered
    return found


def _life(process: SavedProcess) -> tuple[float, float]:
    """When a process began and was last seen, in seconds since the run began."""
    ticks = [int(events[field].max()) for events in process.events.values() if len(events)
             for field in ("t_begin", "t_end")]  # fmt: skip
    last = [float(process.clock.seconds(max(ticks)))] if ticks else []
    if len(process.series):
        last.append(float(process.clock.seconds_at_ns(process.series["time_ns"].max())))
    begin = float(process.clock.seconds(process.snapshot.anchor[0]))
    return begin, max(last, default=begin)
