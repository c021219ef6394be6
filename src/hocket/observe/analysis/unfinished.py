"""Operations that have begun and not completed: those under way in a run that goes on, those that never did so in one
that is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from hocket.observe.analysis.hangs import FAILED, describe_doing, last_seen_s, process_of_rank
from hocket.observe.analysis.operations import MESSAGES, RINGS
from hocket.observe.jobs import ranks_of_jobs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.communicators import RunCommunicator
    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.saved import ObservedRun, SavedProcess

_MOST_OPERATIONS = 1000
"""The longest ones: an asynchronous program may have any number of messages under way."""
_MOST_DESCRIBED = 6
LONG_S = 1.0
"""What a run that goes on has been in for longer is told; shorter operations are its ordinary work."""


@dataclass(frozen=True)
class UnfinishedOperation:
    """An operation in which at least one rank is, or was when it failed or the rank was last seen.

    Ranks are those in the communicator, as a text such as "0-3,7"; "": no rank.

    Args:
        op: name of the operation.
        communicator: its name.
        job: number of the job of the communicator.
        number: of the operation in the communicator.
        peer: other side of a message, root of a collective; -1: it has none.
        nbytes: bytes that it moves, on the rank with the most.
        began_s: when the first of these ranks began it, in seconds since the run began.
        seconds: since then; in a run that is over, until it failed or the ranks in it were last seen.
        entered: ranks that have begun it and not completed it.
        missing: ranks that have not begun it; of a message: not known.
        unknown: ranks that may or may not have begun it, for example those of other hosts while the run goes on.
        doing: what the first missing ranks do instead, in words; "": nothing is known of it.
    """

    op: str
    communicator: str
    job: int
    number: int
    peer: int
    nbytes: int
    began_s: float
    seconds: float
    entered: str
    missing: str
    unknown: str
    doing: str


def unfinished_operations(
    run: ObservedRun, operations: RunOperations, now_s: float | None = None
) -> tuple[UnfinishedOperation, ...]:
    """Return the operations that had not completed, the longest first; at most 1,000.

    In a run that is over those that failed are among them: a deadline or Ctrl-C ends what others had not come to.

    Args:
        run: as it was read.
        operations: of it.
        now_s: the present of a run that goes on, in seconds since it began; None: it is over.
    """
    import numpy as np

    rows = operations.rows
    is_known = (rows["comm"] >= 0) & (rows["rank"] >= 0)
    is_message = np.isin(np.array(operations.kind_names)[rows["kind"]], MESSAGES)
    is_open = is_known & (operations.in_flight | ((rows["state"] == FAILED) & (now_s is None)))
    messages = rows[is_open & is_message][:_MOST_OPERATIONS]  # those that began first
    found = [_operation(run, operations, messages[place : place + 1], now_s) for place in range(len(messages))]
    places = ranks_of_jobs(run.processes)
    for comm in np.unique(rows["comm"][is_open & ~is_message]):
        of_comm = is_known & ~is_message & (rows["comm"] == comm)
        own, own_open = rows[of_comm], rows[of_comm & is_open]
        latest = np.full(operations.communicators[comm].size, -1, np.int64)
        np.maximum.at(latest, own["rank"], own["number"])
        keys = np.unique(own_open[["number", "kind"]])
        for number, kind in keys[:_MOST_OPERATIONS].tolist():
            inside = own_open[(own_open["number"] == number) & (own_open["kind"] == kind)]
            others = own["rank"][(own["number"] == number) & (own["kind"] != kind)]
            missing, unknown = _absent(run, places, operations.communicators[comm], inside["rank"], others,
                                       latest < number, latest < 0)  # fmt: skip
            doing = _describe(run, places, operations.communicators[comm], missing)
            found.append(_operation(run, operations, inside, now_s, _text(missing), _text(unknown), doing))
    return tuple(sorted(found, key=lambda each: -each.seconds)[:_MOST_OPERATIONS])


def describe_unfinished(found: UnfinishedOperation) -> str:
    """Return a sentence: the operation, the ranks that are in it, and those that have not begun it."""
    peer = f" with rank {found.peer}" if found.op in MESSAGES else ""
    parts = [f"{_named(found.entered)} in it"]
    if found.missing:
        doing = f" ({found.doing})" if found.doing else ""
        parts.append(f"{_named(found.missing, 'has', 'have')} not begun it{doing}")
    if found.unknown:
        parts.append(f"{_named(found.unknown)} perhaps in it")
    return f"{found.op} number {found.number} on {found.communicator}{peer}: {', '.join(parts)}"


def _named(ranks: str, one: str = "is", several: str = "are") -> str:
    """Ranks with a verb, such as "ranks 0-3 are"."""
    return f"rank {ranks} {one}" if ranks.isdigit() else f"ranks {ranks} {several}"


def _operation(
    run: ObservedRun, operations: RunOperations, inside: NDArray[np.void], now_s: float | None,
    missing: str = "", unknown: str = "", doing: str = "",
) -> UnfinishedOperation:  # fmt: skip
    communicator = operations.communicators[inside["comm"][0]]
    began_s = float(inside["begin"].min())
    ends = [_end_s(run, each) for each in inside] if now_s is None else [now_s]
    return UnfinishedOperation(
        operations.kind_names[inside["kind"][0]], communicator.label, communicator.job, int(inside["number"][0]),
        int(inside["peer"][0]), int(inside["nbytes"].max()), began_s, max(*ends, began_s) - began_s,
        _text(inside["rank"].tolist()), missing, unknown, doing,
    )  # fmt: skip


def _end_s(run: ObservedRun, row: np.void) -> float:
    """When an operation failed, or its process was last seen."""
    is_known = row["state"] == FAILED and isfinite(row["end"])
    return float(row["end"]) if is_known else last_seen_s(run.processes[row["process"]])


def _absent(
    run: ObservedRun, places: Mapping[tuple[int, int], int], communicator: RunCommunicator,
    inside: NDArray[np.int32], others: NDArray[np.int32], is_behind: NDArray[np.bool_],
    has_begun_none: NDArray[np.bool_],
) -> tuple[list[int], list[int]]:  # fmt: skip
    """The ranks that have not begun a collective, and those that may or may not have begun it.

    Args:
        run, communicator: where it is.
        places: the process of each job and rank.
        inside: ranks that are in it.
        others: ranks that have begun another operation with its number.
        is_behind: of each rank, whether all its operations that are known came before.
        has_begun_none: of each rank, whether no operation of it is known.
    """
    elsewhere, entered = {*others.tolist()}, {*inside.tolist()}
    missing: list[int] = []
    unknown: list[int] = []
    for rank in range(communicator.size):
        if rank in entered or not (is_behind[rank] or rank in elsewhere):
            continue
        place = process_of_rank(places, communicator, rank)
        is_unknown = place is None or (
            (run.processes[place].is_partial and rank not in elsewhere)
            or (has_begun_none[rank] and _has_forgotten(run.processes[place], communicator.label))
        )
        (unknown if is_unknown else missing).append(rank)
    return missing, unknown


def _has_forgotten(process: SavedProcess, label: str) -> bool:
    """Whether a process has completed operations on communicators of a name whose events were lost.

    Totals count all operations; a full table counts those that have no place in it together.
    """
    import numpy as np

    if not any(process.lost.get(ring) for ring in RINGS):
        return False
    totals = process.snapshot.histograms
    same = [ident for ident, each in process.snapshot.communicators.items() if each.text == label]
    has_completed = bool(totals["count"][np.isin(totals["comm"], same)].any())
    return has_completed or process.snapshot.num_overflowed > 0


def _describe(
    run: ObservedRun, places: Mapping[tuple[int, int], int], communicator: RunCommunicator, missing: list[int]
) -> str:
    parts = []
    for rank in missing[:_MOST_DESCRIBED]:
        place = process_of_rank(places, communicator, rank)
        if place is not None and (doing := describe_doing(run.processes[place])):
            parts.append(f"rank {rank}: {doing}")
    return "; ".join(parts)


def _text(ranks: Iterable[int]) -> str:
    """Ranks as a text such as "0-3,7"."""
    parts: list[list[int]] = []
    for rank in sorted({*ranks}):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
