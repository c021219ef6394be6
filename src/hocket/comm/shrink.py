"""A communicator of the ranks that are left after a failure.

Every rank finds out by itself who is gone, and opens a communicator with those it believes alive, whose key tells that
set. To open one takes all its members: who sees a member die there looks again and tries the smaller set. Two ranks may
disagree for a while on whether a set came together before one of it died; both then come to the same smaller set, since
the key is made of the communicator that was the first to fail, and not of those tried in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hocket.comm.fabric import JobFabric
from hocket.comm.messages import listed
from hocket.errors import BackendUnavailable, InvalidArgument, InvalidState, InvalidType, PeerFailure
from hocket.trace import logger

Survivors = TypeVar("Survivors")


@dataclass(frozen=True)
class Lineage:
    """Where a communicator of survivors comes from.

    Args:
        key: of the communicator that was the first to fail.
        times: how often its present members came together anew.
    """

    key: int
    times: int = 0


@dataclass(frozen=True)
class Membership:
    """A communicator as far as those that go on after it have to know it.

    Args:
        label: of it.
        rank: this one, in it.
        members: ranks of the job.
        fabric: that connects them.
        lineage: where it comes from.
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
        members: ranks of the job.
        label: of it.
        identity: what its key is made of.
        lineage: where it comes from.
        timeout_s: for all of them to come.
    """

    fabric: JobFabric
    members: list[int]
    label: str
    identity: tuple[object, ...]
    lineage: Lineage
    timeout_s: float


def check_excluded(own: Membership, exclude: Collection[int]) -> list[int]:
    """Return ranks that are to be left out.

    Raises:
        InvalidType, InvalidArgument: they are no ranks of the communicator, or this one is among them.
        InvalidState: the ranks are virtual.
    """
    if own.fabric.virtual is not None:
        raise InvalidState("virtual ranks cannot go on without one of them; simulate fewer")
    exclude = listed("exclude", "ranks", exclude)
    for rank in exclude:
        if not isinstance(rank, int):
            raise InvalidType(f"exclude must be a sequence of ranks, which are ints, not {rank!r}")
        if not 0 <= rank < len(own.members):
            raise InvalidArgument(f"exclude names rank {rank}; ranks lie between 0 and {len(own.members) - 1}")
    if own.rank in exclude:
        raise InvalidArgument(f"rank {own.rank} is excluded; only those that go on call shrink()")
    return exclude


def open_survivors(
    own: Membership, exclude: Collection[int], timeout: float, open_: Callable[[Opening], Survivors]
) -> Survivors:
    """Open a communicator of the ranks that are left; see `Communicator.shrink`.

    Args:
        own: the communicator that has failed.
        exclude: ranks of it that do not call this, checked.
        timeout: seconds.
        open_: opens a communicator, or raises PeerFailure where a member died meanwhile.
    """
    before = [member for rank, member in enumerate(own.members) if rank not in set(exclude)]
    deadline = time.monotonic() + timeout
    while True:
        gone = _find_gone(own)
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


def _find_gone(own: Membership) -> set[int]:
    """Return the ranks of the job that have died or left it, as far as this one knows."""
    fabric, host_here = own.fabric, own.fabric.layout.hosts[own.members[own.rank]]
    gone = set(fabric.control.dead()) if fabric.control is not None else set()
    gone_here = set(fabric.host.gone())
    for rank, (host, local_rank) in enumerate(zip(fabric.layout.hosts, fabric.layout.local_ranks, strict=True)):
        if host == host_here and local_rank in gone_here:
            gone.add(rank)
    return gone


def _without_broken(fabric: JobFabric, members: Collection[int]) -> JobFabric:
    """Return what still connects some ranks: libraries that can go on without the others."""
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
