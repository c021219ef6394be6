"""Collectives that never completed, and the ranks that they waited for."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from hocket.observe.activity import operation_name, target_of
from hocket.observe.analysis.operations import IN_FLIGHT, MESSAGES
from hocket.observe.jobs import ranks_of_jobs
from hocket.observe.series import SERIES_STATES
from hocket.trace import EVENT_STATES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.communicators import RunCommunicator
    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.saved import ObservedRun, SavedProcess

ENDED_WITH_JOB = "ended with the job"
RANK_STATES = ("was killed", ENDED_WITH_JOB, "stopped", "ended", "replaced", "running", "not recorded")
"""How a rank was last seen; "ended with the job": it ran until a signal ended the job as a whole."""
_ENDING_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""With these users and schedulers end a job, and launchers its ranks."""
_TOGETHER_S = 1.0
"""A launcher ends ranks within this time; after the death of a rank it lets the others run for longer."""
FAILED = EVENT_STATES.index("failed")


@dataclass(frozen=True)
class MissingRank:
    """A rank that did not begin an operation for which others waited.

    Args:
        rank: in the communicator.
        process: place in `ObservedRun.processes`; None: it was not recorded.
        state: one of `RANK_STATES`.
        last_number: number of its latest collective on the communicator; None: it has begun none.
        other_kind: the operation that it has begun with this number instead; "": none.
        doing: what it had begun and not completed, such as "region forward" or "read of weights.pt"; "": nothing.

    Examples:
        >>> from hocket import observe
        >>> observe.MissingRank(3, 3, "stopped", 9, "", "region forward").state
        'stopped'
    """

    rank: int
    process: int | None
    state: str
    last_number: int | None
    other_kind: str
    doing: str


@dataclass(frozen=True)
class Hang:
    """A collective that some ranks began and that never completed, or failed.

    Args:
        comm: place in `RunOperations.communicators`.
        number: of the operation in the communicator.
        kind: its name.
        nbytes: its bytes.
        waiting: ranks in the communicator that have begun it and not completed it.
        waited_s: seconds from the first begin until it failed, or until the last of these ranks was last seen.
        missing: ranks that have not, or have begun something else.

    Examples:
        >>> from hocket import observe
        >>> observe.Hang(0, 10, "all_reduce", 4000, (0, 1), 8.7, ()).kind
        'all_reduce'
    """

    comm: int
    number: int
    kind: str
    nbytes: int
    waiting: tuple[int, ...]
    waited_s: float
    missing: tuple[MissingRank, ...]


def hangs(run: ObservedRun, operations: RunOperations) -> tuple[Hang, ...]:
    """Return the collectives that never completed or failed: of each communicator the one that began first.

    Args:
        run: from `open_run`.
        operations: from `operations_of`.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-that-ended")
        >>> run = observe.open_run("run-that-ended")
        >>> observe.hangs(run, observe.operations_of(run))
        ()
    """
    import numpy as np

    rows = operations.rows
    names = np.array(operations.kind_names)
    is_collective = ~np.isin(names[rows["kind"]], MESSAGES) & (rows["comm"] >= 0) & (rows["rank"] >= 0)
    rows, is_open = rows[is_collective], (operations.in_flight | (rows["state"] == FAILED))[is_collective]
    found, places = [], ranks_of_jobs(run.processes)
    for comm in np.unique(rows["comm"][is_open]):
        is_own = rows["comm"] == comm
        found.append(_hang(run, operations, places, int(comm), rows[is_own], is_open[is_own]))
    return tuple(sorted(found, key=lambda each: -each.waited_s))


def _hang(
    run: ObservedRun, operations: RunOperations, places: Mapping[tuple[int, int], int], comm: int,
    rows: NDArray[np.void], is_open: NDArray[np.bool_],
) -> Hang:  # fmt: skip
    import numpy as np

    communicator = operations.communicators[comm]
    number = int(rows["number"][is_open].min())
    begun = rows[rows["number"] == number]
    waiting = begun[is_open[rows["number"] == number]]
    kinds, counts = np.unique(waiting["kind"], return_counts=True)
    kind = int(kinds[np.argmax(counts)])
    first = waiting[waiting["kind"] == kind]
    ends = np.array([last_seen_s(run.processes[process]) for process in first["process"]])
    end_s = float(np.where(first["state"] == FAILED, first["end"], ends).max())
    same = {int(rank) for rank in begun["rank"][begun["kind"] == kind]}
    end_of_job_s = _ended_from_outside_s(run, waiting)
    missing = tuple(
        _missing(
            run, operations, communicator, rank, process_of_rank(places, communicator, rank), number, rows, end_of_job_s
        )
        for rank in range(communicator.size)
        if rank not in same
    )
    return Hang(
        comm=comm,
        number=number,
        kind=operations.kind_names[kind],
        nbytes=int(first["nbytes"].max()),
        waiting=tuple(sorted(int(rank) for rank in first["rank"])),
        waited_s=max(end_s - float(first["begin"].min()), 0.0),
        missing=missing,
    )


def ending_signal(run: ObservedRun) -> signal.Signals | None:
    """Return the signal that ended a run's command, as its exit code says; None: it was none, or the run goes on.

    Launchers that were told to end by a signal exit with 128 and its number, as shells do.
    """
    code = run.description.exit_code or 0
    number = -code if code < 0 else code - 128
    return signal.Signals(number) if number in {*signal.Signals} else None


def _ended_from_outside_s(run: ObservedRun, waiting: NDArray[np.void]) -> float:
    """When a signal from outside ended the first of the ranks that waited; infinite: none did, or one ended itself.

    A rank that notices the death of another one fails, and ends by itself.
    """
    if ending_signal(run) not in _ENDING_SIGNALS or (waiting["state"] == FAILED).any():
        return inf
    processes = [run.processes[place] for place in waiting["process"]]
    if any(state_of(process) != "was killed" for process in processes):
        return inf
    return min(map(last_seen_s, processes))


def _missing(
    run: ObservedRun, operations: RunOperations, communicator: RunCommunicator, rank: int, place: int | None,
    number: int, rows: NDArray[np.void], end_of_job_s: float,
) -> MissingRank:  # fmt: skip
    own = rows[rows["rank"] == rank]
    other = own["kind"][own["number"] == number]
    state = "not recorded" if place is None else state_of(run.processes[place])
    if state == "was killed" and place is not None and last_seen_s(run.processes[place]) >= end_of_job_s - _TOGETHER_S:
        state = ENDED_WITH_JOB
    return MissingRank(
        rank=rank,
        process=place,
        state=state,
        last_number=int(own["number"].max()) if len(own) else None,
        other_kind=operations.kind_names[int(other[0])] if len(other) else "",
        doing="" if place is None else describe_doing(run.processes[place]),
    )


def process_of_rank(places: Mapping[tuple[int, int], int], communicator: RunCommunicator, rank: int) -> int | None:
    """Return the process of a rank of a communicator, also of one that has not used it yet; None: not recorded.

    Args:
        places: the process of each job and rank, from `ranks_of_jobs`.
        communicator: of one of these jobs.
        rank: in it.
    """
    if (place := communicator.processes.get(rank)) is not None:
        return place
    if rank >= len(communicator.members):
        return None
    return places.get((communicator.job, communicator.members[rank]))


def state_of(process: SavedProcess) -> str:
    """Return how a process was last seen, one of `RANK_STATES`; the last row of its series is that of its end."""
    states = [SERIES_STATES[state] for state in process.series["state"]]
    running = [state for state in states if state not in ("ended", "replaced", "unknown")]
    if running and running[-1] == "stopped":
        return "stopped"
    if process.snapshot.owner.has_ended:
        return "ended"
    if states and states[-1] == "replaced":  # by the next program of the same process
        return "replaced"
    return "was killed" if states and states[-1] == "ended" else "running"


def last_seen_s(process: SavedProcess) -> float:
    """Return when a process was last seen, in seconds since the run began."""
    if len(process.series):
        return float(process.clock.seconds_at_ns(process.series["time_ns"][-1]))
    ends = [float(process.clock.seconds(events["t_begin"].max())) for events in process.events.values() if len(events)]
    return max(ends, default=0.0)


def describe_doing(process: SavedProcess) -> str:
    """Return the latest that a process had begun and not completed, in a few words; "": nothing."""
    import numpy as np

    latest = [
        (int(events["t_begin"][is_open].max()), ring, events[is_open][np.argmax(events["t_begin"][is_open])])
        for ring, events in process.events.items()
        if (is_open := np.isin(events["state"], IN_FLIGHT)).any()
    ]
    if not latest:
        return ""
    _, ring, event = max(latest, key=lambda each: each[0])
    name, target = operation_name(ring, int(event["kind"])), target_of(process.snapshot, ring, event)
    return f"{name} {target}"
