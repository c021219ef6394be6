"""Who waited for whom: the time that early ranks spent on late ones in collectives, and receivers on late senders.

The wait states are Scalasca's: wait at N x N, late broadcast, early reduce, late sender (Geimer et al., The Scalasca
performance toolset architecture, 2010).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.messages import matched_messages

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.saved import ObservedRun

ALL_WAIT = (
    "barrier", "all_reduce", "all_gather", "all_gatherv", "reduce_scatter", "reduce_scatterv", "all_to_all",
    "all_to_allv",
)  # fmt: skip
"""No rank can complete these before all have begun."""
WAIT_FOR_ROOT = ("broadcast", "scatter", "scatterv")
ROOT_WAITS = ("reduce", "gather", "gatherv")
WAIT_FIELDS = (
    ("row", "<i8"), ("group", "<i8"), ("process", "<i4"), ("late_process", "<i4"), ("wait", "<f8"),
    ("lateness", "<f8"),
)  # fmt: skip
"""Columns of `WaitStates.rows`."""


@dataclass(frozen=True)
class WaitStates:
    """The waits of a run.

    Args:
        rows: structured array with `WAIT_FIELDS`, one row for each rank of each collective, and one for the send and
            for the receive of each message: "row" is the operation's place in `RunOperations.rows`; "group" numbers the
            collectives and messages; "late_process" is the last to arrive, as a place in `ObservedRun.processes`;
            "wait" how many seconds this rank was in the operation before that one arrived, of a sender always 0, and
            of collectives under way at the same time each moment once, for the first of them;
            "lateness" how many seconds after the first rank it arrived itself. Differences smaller than the error of
            the clocks count as 0.
        num_collectives: how many collectives were compared.
        num_incomplete: how many were not, because a rank did not begin them or was not recorded, or because not every
            one of these operations was recorded.
        num_mismatched: how many were not, because ranks have begun different operations with the same number.
        num_messages: how many messages were matched.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-of-one-rank")
        >>> run = observe.open_run("run-of-one-rank")
        >>> observe.wait_states(run, observe.operations_of(run)).num_collectives
        0
    """

    rows: NDArray[np.void]
    num_collectives: int
    num_incomplete: int
    num_mismatched: int
    num_messages: int


def wait_states(run: ObservedRun, operations: RunOperations) -> WaitStates:
    """Return how long each rank waited for others in each collective of two or more ranks, and for each message.

    Args:
        run: from `open_run`.
        operations: from `operations_of`.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-without-waits")
        >>> run = observe.open_run("run-without-waits")
        >>> len(observe.wait_states(run, observe.operations_of(run)).rows)
        0
    """
    import numpy as np

    places = _collective_rows(operations)
    messages = matched_messages(operations)
    if not len(places):
        return WaitStates(_message_waits(run, operations, messages, 0), 0, 0, 0, len(messages))
    rows = operations.rows[places]
    order = np.lexsort((rows["rank"], rows["number"], rows["comm"]))
    places, rows = places[order], rows[order]
    comm, number, rank = rows["comm"], rows["number"], rows["rank"]
    is_first = np.ones(len(rows), bool)
    is_first[1:] = (comm[1:] != comm[:-1]) | (number[1:] != number[:-1])
    starts = np.flatnonzero(is_first)
    counts = np.diff(np.append(starts, len(rows)))
    group = np.repeat(np.arange(len(starts)), counts)
    expected = np.array([each.size for each in operations.communicators], np.int64)[comm[starts]]
    # Each rank once, and so from 0 to the last one.
    is_whole = (counts == expected) & np.logical_and.reduceat(rank == np.arange(len(rows)) - starts[group], starts)
    is_matched = np.logical_and.reduceat(rows["kind"] == rows["kind"][starts][group], starts)
    has_others = expected > 1
    is_usable = is_whole & is_matched & has_others
    num_collectives = int(is_usable.sum())
    in_collectives = _waits(run, operations, places[is_usable[group]], counts[is_usable])
    in_messages = _message_waits(run, operations, messages, num_collectives)
    return WaitStates(
        rows=np.concatenate([in_collectives, in_messages]),
        num_collectives=num_collectives,
        num_incomplete=int((~is_whole & has_others).sum()),
        num_mismatched=int((is_whole & ~is_matched & has_others).sum()),
        num_messages=len(messages),
    )


def _collective_rows(operations: RunOperations) -> NDArray[np.int64]:
    """Places of the rows of the program's collectives whose waits are known."""
    import numpy as np

    rows = operations.rows
    of_program = numbers_of_program(operations.communicators)
    known = [
        kind for kind, name in enumerate(operations.kind_names) if name in (*ALL_WAIT, *WAIT_FOR_ROOT, *ROOT_WAITS)
    ]
    is_known = np.isin(rows["kind"], known) & np.isin(rows["comm"], of_program) & (rows["rank"] >= 0)
    has_root = [kind for kind, name in enumerate(operations.kind_names) if name in (*WAIT_FOR_ROOT, *ROOT_WAITS)]
    is_known &= ~np.isin(rows["kind"], has_root) | (rows["peer"] >= 0)
    return np.flatnonzero(is_known)


def _waits(
    run: ObservedRun, operations: RunOperations, places: NDArray[np.int64], counts: NDArray[np.int64]
) -> NDArray[np.void]:
    import numpy as np

    found = np.zeros(len(places), list(WAIT_FIELDS))
    if not len(places):
        return found
    rows = operations.rows[places]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    group = np.repeat(np.arange(len(counts)), counts)
    begin = rows["begin"]
    # The place of the last one to arrive in each group.
    last = np.lexsort((begin, group))[np.cumsum(counts) - 1]
    names = np.array(operations.kind_names)[rows["kind"]]
    waits_for_root, root_waits = np.isin(names, WAIT_FOR_ROOT), np.isin(names, ROOT_WAITS)
    root = starts[group] + np.clip(rows["peer"], 0, counts[group] - 1)
    late = np.where(waits_for_root, root, last[group])
    until = np.fmin(begin[late], np.where(np.isnan(rows["end"]), np.inf, rows["end"]))
    wait = np.maximum(until - begin, 0.0)
    wait[root_waits & (np.arange(len(places)) != root)] = 0.0
    wait = _counted_once(rows["process"], begin, wait)
    mine, theirs = rows["process"], rows["process"][late]
    error = _clock_errors(run, mine, theirs)
    lateness = begin - np.minimum.reduceat(begin, starts)[group]
    found["row"], found["group"], found["process"], found["late_process"] = places, group, mine, theirs
    found["wait"], found["lateness"] = np.maximum(wait - error, 0.0), np.maximum(lateness - error, 0.0)
    return found


def _counted_once(
    process: NDArray[np.int64], begin: NDArray[np.float64], wait: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Waits in which each moment of a process counts once, for the operation that it began first.

    Asynchronous operations, such as those of the buckets of DDP, wait at the same time.
    """
    import numpy as np

    order = np.lexsort((begin, process))
    starts = np.flatnonzero(np.diff(process[order], prepend=-1))
    found = wait.copy()
    for own in np.split(order, starts[1:]):
        latest = np.maximum.accumulate(begin[own] + wait[own])
        begun = np.maximum(begin[own], np.append(begin[own[:1]], latest[:-1]))
        found[own] = np.clip(begin[own] + wait[own] - begun, 0.0, None)
    return np.asarray(found)


def _message_waits(
    run: ObservedRun, operations: RunOperations, messages: NDArray[np.int64], first_group: int
) -> NDArray[np.void]:
    """Two rows for each message: the send and the receive."""
    import numpy as np

    found = np.zeros(2 * len(messages), list(WAIT_FIELDS))
    places = messages.reshape(-1)
    rows = operations.rows[places]
    begin, other = rows["begin"], np.arange(len(rows)) ^ 1
    is_receive = np.arange(len(rows)) % 2 == 1
    late_by = begin - begin[other]
    end = np.where(np.isnan(rows["end"]), np.inf, rows["end"])
    wait = np.where(is_receive, np.clip(np.minimum(begin[other], end) - begin, 0.0, None), 0.0)
    # The caller of an asynchronous receive goes on, and waits later or never.
    wait = np.where(rows["is_async"], np.fmin(wait, np.nan_to_num(rows["blocked"])), wait)
    error = _clock_errors(run, rows["process"], rows["process"][other])
    found["row"], found["group"] = places, first_group + np.arange(len(rows)) // 2
    found["process"] = rows["process"]
    found["late_process"] = np.where(late_by > 0, rows["process"], rows["process"][other])
    found["wait"], found["lateness"] = np.maximum(wait - error, 0.0), np.maximum(late_by - error, 0.0)
    return found


def _clock_errors(run: ObservedRun, mine: NDArray[np.int64], theirs: NDArray[np.int64]) -> NDArray[np.float64]:
    """By how much the clocks of two processes may differ; on one host they are the same."""
    import numpy as np

    errors = np.array([each.clock.error_s for each in run.processes])
    hosts = np.array([each.host for each in run.processes])
    return np.where(hosts[mine] == hosts[theirs], 0.0, errors[mine] + errors[theirs])
