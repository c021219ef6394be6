"""Who sent how many bytes to whom."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from hocket.collectives import Schedule, find_algorithm
from hocket.errors import InvalidArgument
from hocket.observe.analysis.breakdown import whole_nbytes
from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.operations import kind_names
from hocket.observe.analysis.totals import COMMUNICATION, TRANSFER, RunTotals

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.communicators import RunCommunicator

SEND_OF_TRANSFERS = 0
"""The kind of transfers that send."""
_ASSUMED = {
    "all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring", "broadcast": "binomial",
    "reduce": "binomial", "all_to_all": "pairwise", "gather": "direct", "scatter": "direct",
}  # fmt: skip
"""How the bytes of a collective are expanded whose messages nobody reported: a schedule, or "direct" from or to the
root."""
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


@dataclass(frozen=True)
class CommunicationMatrix:
    """Bytes between the ranks of a job.

    Args:
        job: its number in the run.
        sent_nbytes: of shape (ranks, ranks), int64: bytes that the first rank sent to the second one in messages that
            were recorded: those of the program, and those of the schedules of collectives.
        num_messages: of the same shape: how many messages.
        modelled_nbytes: of the same shape, float64: bytes of collectives that a library carried out by an algorithm of
            its own, and whose messages are not known: as a ring, a binomial tree or direct messages would send them.
        unknown_nbytes: bytes of recorded messages whose receiver is not known, such as those to another job, and of
            collectives whose root is not known.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-of-no-message")
        >>> observe.communication_matrix(observe.totals_of(observe.open_run("run-of-no-message"))).sent_nbytes.shape
        (0, 0)
    """

    job: int
    sent_nbytes: NDArray[np.int64]
    num_messages: NDArray[np.int64]
    modelled_nbytes: NDArray[np.float64]
    unknown_nbytes: int


def communication_matrix(totals: RunTotals, job: int | None = None) -> CommunicationMatrix:
    """Return the bytes between the ranks of a job, from exact totals.

    Args:
        totals: from `totals_of`.
        job: its number; None: the one with the most ranks.

    Raises:
        InvalidArgument: the run has no such job.

    Examples:
        >>> import sys
        >>> from pathlib import Path
        >>> from hocket import observe
        >>> program = "import hocket as hk, numpy as np; hk.init().all_reduce(np.ones(1000, 'f4'), algorithm='ring')"
        >>> _ = Path("reduce.py").write_text(program)
        >>> launch = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", "reduce.py"]
        >>> _ = observe.record_run(launch, "run-of-a-ring")
        >>> observe.communication_matrix(observe.totals_of(observe.open_run("run-of-a-ring"))).sent_nbytes.tolist()
        [[0, 4000], [4000, 0]]
    """
    import numpy as np

    sizes: dict[int, int] = {}
    for each in totals.communicators:
        sizes[each.job] = max(sizes.get(each.job, 0), 1 + max((*each.members, *_job_ranks(each)), default=-1))
    if job is None:
        job = max(sizes, key=lambda each: sizes[each], default=0)
    elif job not in sizes:
        known = ", ".join(map(str, sorted(sizes))) or "none"
        raise InvalidArgument(f"job {job} does not communicate in this run; jobs that do: {known}")
    num_ranks = sizes.get(job, 0)
    sent, count = (np.zeros((num_ranks, num_ranks), np.int64) for _ in range(2))
    modelled = np.zeros((num_ranks, num_ranks))
    unknown = 0
    of_job = [each for each in numbers_of_program(totals.communicators) if totals.communicators[each].job == job]
    for row in totals.rows[np.isin(totals.rows["comm"], of_job)]:
        ranks = _job_ranks(totals.communicators[row["comm"]])
        op = kind_names()[row["kind"]] if row["layer"] == COMMUNICATION else ""
        if op == "send" or (row["layer"] == TRANSFER and row["kind"] == SEND_OF_TRANSFERS):
            source, target = ranks.get(int(row["rank"])), ranks.get(int(row["peer"]))
            if source is None or target is None:
                unknown += int(row["nbytes"])
            else:
                sent[source, target] += row["nbytes"]
                count[source, target] += row["count"]
        elif op in _ROOTED and row["peer"] < 0:
            unknown += int(row["nbytes"])
        elif op in _ASSUMED and not row["algorithm"]:
            _add_modelled(modelled, row, op, ranks)
    return CommunicationMatrix(job, sent, count, modelled, unknown)


def _job_ranks(communicator: RunCommunicator) -> dict[int, int]:
    """The rank in the job of each rank of a communicator; without its members, of one that everyone has: the same."""
    if communicator.members:
        return {rank: member for rank, member in enumerate(communicator.members) if member >= 0}
    return {rank: rank for rank in communicator.processes if rank >= 0}


def _add_modelled(matrix: NDArray[np.float64], row: np.void, op: str, ranks: dict[int, int]) -> None:
    """Add what one rank of a collective sends."""
    own, num_ranks = int(row["rank"]), len(ranks)
    if own not in ranks or num_ranks < 2:
        return
    root = int(row["peer"]) if op in _ROOTED else 0
    whole = whole_nbytes(op, int(row["nbytes"]), num_ranks, bool(row["is_foreign"]))
    for place, share in _sent_shares(op, num_ranks, (own - root) % num_ranks):
        matrix[ranks[own], ranks[(place + root) % num_ranks]] += share * whole


@cache
def _sent_shares(op: str, num_ranks: int, place: int) -> list[tuple[int, float]]:
    """To which ranks the rank at a place, counted from the root, sends which share of the array."""
    import numpy as np

    if op == "gather":
        return [(0, 1 / num_ranks)] if place else []
    if op == "scatter":
        return [] if place else [(target, 1 / num_ranks) for target in range(1, num_ranks)]
    schedule = _assumed_schedule(op, num_ranks)
    is_own = schedule.is_remote & (schedule.sources == place)
    counts = np.bincount(schedule.destinations[is_own], minlength=num_ranks)
    return [(target, float(counts[target]) / schedule.num_blocks) for target in np.flatnonzero(counts).tolist()]


@cache
def _assumed_schedule(op: str, num_ranks: int) -> Schedule:
    return find_algorithm(op, _ASSUMED[op]).schedule(num_ranks)
