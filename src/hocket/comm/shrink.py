"""A communicator of the ranks that survive a failure.

Every rank determines by itself which ranks are gone, and opens a communicator with the others. The key of the new
communicator depends on this set. Opening needs all members of the set; a rank that sees a member die meanwhile tries
again with the smaller set. Two ranks may disagree for a while on whether a set was opened before one of its members
died. Both then reach the same smaller set, because the key is derived from the communicator that failed first, not from
those that were tried in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hocket.comm.fabric import JobFabric
from hocket.comm.messages import as_list
from hocket.errors import BackendUnavailable, InvalidArgument, InvalidState, InvalidType, PeerFailure
from hocket.trace import logger

Survivors = TypeVar("Survivors")


@dataclass(frozen=True)
class Lineage:
    """The origin of a communicator of survivors.

    Args:
        key: key of the communicator that failed first.
        times: how often the present members have opened a communicator again.
    """

    key: int
    times: int = 0


@dataclass(frozen=True)
class Membership:
    """The facts about a failed communicator that its survivors need.

    Args:
        label: its label.
        rank: this rank in it.
        members: its members, as ranks of the job.
        fabric: what connects them.
        lineage: its origin.
    """

    label: str
    rank: int
    members: Sequence[int]
    fabric: JobFabric
    lineage: Lineage


@dataclass(frozen=True)
class Opening:
    """A communicator that survivors try to open.

    Args:
        fabric: what still connects them.
        members: the survivors, as ranks of the job.
        label: its label.
        identity: the values that its key is derived from.
        lineage: its origin.
        timeout_s: seconds in which all members must take part.
    """

    fabric: JobFabric
    members: list[int]
    label: str
    identity: tuple[object, ...]
    lineage: Lineage
    timeout_s: float


def check_excluded(own: Membership, exclude: Collection[int]) -> list[int]:
    """Return the ranks to leave out, checked.

    Raises:
        InvalidType, InvalidArgument: an item is not a rank of the communicator, or is this rank.
        InvalidState: the ranks are virtual.
    """
    if own.fabric.virtual is not None:
        raise InvalidState("virtual ranks cannot continue without one of them; simulate fewer")
    exclude = as_list("exclude", "ranks", exclude)
    for rank in exclude:
        if not isinstance(rank, int):
            raise InvalidType(f"exclude must be a sequence of ranks, which are ints, not {rank!r}")
        if not 0 <= rank < len(own.members):
            raise InvalidArgument(f"exclude names rank {rank}; ranks lie between 0 and {len(own.members) - 1}")
    if own.rank in exclude:
        raise InvalidArgument(f"rank {own.rank} is excluded; only the ranks that continue call shrink()")
    return exclude


def open_survivors(
    own: Membership, exclude: Collection[int], timeout: float, open_: Callable[[Opening], Survivors]
) -> Survivors:
    """Open a communicator of the surviving ranks; see `Communicator.shrink`.

    Args:
        own: the communicator that has failed.
        exclude: its ranks that do not take part, checked.
        timeout: seconds.
        open_: opens a communicator, or raises PeerFailure if a member dies meanwhile.
    """
    before = [member for rank, member in enumerate(own.members) if rank not in set(exclude)]
    deadline = time.monotonic() + timeout
    while True:
        gone = _departed_ranks(own)
        members = [member for member in before if member not in gone]
        again = len(members) == len(own.members)
        lineage = Lineage(own.lineage.key, own.lineage.times + 1 if again else 0)
        opening = Opening(
            _without_broken(own.fabric, members),
            members,
            f"survivors of {own.label.removeprefix('survivors of ')}",
            (lineage.key, "survivors", lineage.times, *members),
            lineage,
            max(0.0, deadline - time.monotonic()),
        )
        try:
            survivors = open_(opening)
        except PeerFailure:
            if time.monotonic() > deadline:
                raise
            continue
        logger.info("%s: %d of %d ranks; gone: %s", opening.label, len(members), len(own.members), sorted(gone))
        return survivors


def _departed_ranks(own: Membership) -> set[int]:
    """Return the ranks of the job that have died or left it, as far as this rank knows."""
    fabric, host_here = own.fabric, own.fabric.layout.hosts[own.members[own.rank]]
    gone = set(fabric.control.dead()) if fabric.control is not None else set()
    gone_here = set(fabric.host.gone())
    for rank, (host, local_rank) in enumerate(zip(fabric.layout.hosts, fabric.layout.local_ranks, strict=True)):
        if host == host_here and local_rank in gone_here:
            gone.add(rank)
    return gone


def _without_broken(fabric: JobFabric, members: Collection[int]) -> JobFabric:
    """Return the fabric with those libraries only that can continue without the other ranks."""
    left_out = dict(fabric.left_out)
    libraries = []
    for library in fabric.libraries:
        reason = library.why_cannot_shrink(members)
        if reason is None:
            libraries.append(library)
        else:
            left_out[library.name] = reason
    if not libraries and fabric.layout.num_hosts(list(members)) > 1:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise BackendUnavailable(f"the survivors are on several hosts, and no library connects them: {reasons}")
    allowed = [name for name in fabric.allowed if name == "shm" or name in {each.name for each in libraries}]
    return replace(fabric, libraries=libraries, left_out=left_out, allowed=allowed or ["shm"])
