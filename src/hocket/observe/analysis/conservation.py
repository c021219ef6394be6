"""Whether the bytes that the layers of a run report agree: operations, messages, TCP connections, network devices.

Where the lower layer has more bytes than the upper one explains, there is other traffic; where it has less, the bytes
took another way, or a counter is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from hocket.collectives.source import parse_algorithm
from hocket.errors import InvalidArgument
from hocket.observe.analysis.breakdown import whole_nbytes
from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.connections import connections_of
from hocket.observe.analysis.links import link_loads
from hocket.observe.analysis.matrix import SEND_OF_TRANSFERS, communication_matrix
from hocket.observe.analysis.operations import kind_names
from hocket.observe.analysis.totals import COMMUNICATION, TRANSFER, RunTotals, totals_of
from hocket.observe.jobs import job_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from hocket.observe.saved import ObservedRun

_OPERATIONS, _MESSAGES, _DEVICE = "operations to messages", "messages to connections", "connections to device"
_LEAST_SHARE = 0.5
"""Of its messages that a pair of ranks on one host sends over TCP; with less they go through shared memory."""
_MOST_RESIDUAL = 0.05
_LEAST_NBYTES = 64 << 10


@dataclass(frozen=True)
class ConservedBytes:
    """The bytes that one layer handed to the one below.

    Args:
        edge: "operations to messages" of the schedules of a communicator, "messages to connections" of two ranks, or
            "connections to device".
        what: which ones, such as "world", "rank 0 to rank 1" or "node-1 eth0".
        expected_nbytes: of the layer above, and its headers.
        found_nbytes: of the layer below.
        is_modelled: whether a part of the bytes above is that of a model of collectives whose messages are not known.

    Examples:
        >>> from hocket import observe
        >>> observe.ConservedBytes("connections to device", "node-1 eth0", 1e6, 1.5e6, False).residual
        0.5
    """

    edge: str
    what: str
    expected_nbytes: float
    found_nbytes: float
    is_modelled: bool

    @property
    def residual(self) -> float:
        """Share of bytes that is not explained, of those expected; negative: bytes are missing."""
        return self.found_nbytes / self.expected_nbytes - 1 if self.expected_nbytes else float(self.found_nbytes > 0)

    @property
    def is_explained(self) -> bool:
        """Whether the layers agree within 5 % or 64 KiB."""
        difference = abs(self.found_nbytes - self.expected_nbytes)
        return difference <= _LEAST_NBYTES or abs(self.residual) <= _MOST_RESIDUAL


def conservation(run: ObservedRun, job: int | None = None) -> tuple[ConservedBytes, ...]:
    """Compare the bytes of operations, messages, connections and devices of a run.

    The messages of an operation are known if hocket carried it out by a schedule; the schedule says how many bytes they
    have. Ranks of one host that exchange their messages through shared memory are left out.

    Args:
        run: from `open_run`.
        job: number of the job whose ranks are compared; None: the one with the most ranks.

    Raises:
        InvalidArgument: the run has no such job.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-of-no-bytes")
        >>> [each for each in observe.conservation(observe.open_run("run-of-no-bytes")) if each.edge.startswith("mess")]
        []
    """
    totals = totals_of(run)
    return (*_of_operations(totals), *_of_messages(run, totals, job), *_of_devices(run))


def _of_operations(totals: RunTotals) -> Iterator[ConservedBytes]:
    rows = totals.rows
    for comm in numbers_of_program(totals.communicators):
        own, size = rows[rows["comm"] == comm], totals.communicators[comm].size
        by_schedule = own[(own["layer"] == COMMUNICATION) & (own["algorithm"] > 0) & ~own["is_foreign"]]
        try:
            expected = sum(_sent_nbytes(row, totals.names[row["algorithm"]], size) for row in by_schedule)
        except InvalidArgument:
            continue  # a schedule of the program's own, or of another version
        found = own["nbytes"][(own["layer"] == TRANSFER) & (own["kind"] == SEND_OF_TRANSFERS)].sum()
        if expected:
            yield ConservedBytes(_OPERATIONS, totals.communicators[comm].label, expected, float(found), False)


def _sent_nbytes(row: np.void, algorithm: str, num_ranks: int) -> float:
    """What one rank's operations make all ranks send, divided by the number of ranks."""
    op = kind_names()[row["kind"]]
    whole = whole_nbytes(op, int(row["nbytes"]), num_ranks, is_foreign=False)
    return whole * _sent_share(op, algorithm, num_ranks) / num_ranks


@cache
def _sent_share(op: str, algorithm: str, num_ranks: int) -> float:
    """How many times the whole array all ranks together send."""
    found, parameters = parse_algorithm(op, algorithm)
    schedule = found.schedule(num_ranks, **parameters)
    return float(schedule.is_remote.sum()) / schedule.num_blocks


def _of_messages(run: ObservedRun, totals: RunTotals, job: int | None) -> Iterator[ConservedBytes]:
    matrix = communication_matrix(totals, job)
    jobs = job_numbers(run.processes)
    carried: dict[tuple[int, int], float] = {}
    hosts: dict[int, str] = {}
    for each in connections_of(run):
        ranks = [_rank_in(run, jobs, place, matrix.job) for place in (each.process, each.peer)]
        if ranks[0] is not None and ranks[1] is not None and ranks[0] != ranks[1]:
            pair = ranks[0], ranks[1]
            carried[pair] = carried.get(pair, 0.0) + each.sent_nbytes
            hosts[pair[0]] = each.host
    for (source, target), found in sorted(carried.items()):
        if max(source, target) >= len(matrix.sent_nbytes):
            continue  # ranks that have not communicated
        sent, modelled = float(matrix.sent_nbytes[source, target]), float(matrix.modelled_nbytes[source, target])
        is_on_one_host = hosts[source] == hosts.get(target)
        if sent + modelled and not (is_on_one_host and found < _LEAST_SHARE * (sent + modelled)):
            yield ConservedBytes(_MESSAGES, f"rank {source} to rank {target}", sent + modelled, found, modelled > 0)


def _rank_in(run: ObservedRun, jobs: list[int], place: int | None, job: int) -> int | None:
    return None if place is None or jobs[place] != job else run.processes[place].snapshot.owner.rank


def _of_devices(run: ObservedRun) -> Iterator[ConservedBytes]:
    for link in link_loads(run):
        if link.sent_nbytes > 0:
            yield ConservedBytes(_DEVICE, f"{link.host} {link.device}", link.explained_nbytes, link.sent_nbytes, False)
