"""A communicator of the ranks that are left after a failure.

Every rank finds out by itself who is gone, and opens a communicator with those it believes alive, whose key tells that
set. To open one takes all its members: who sees a member die there looks again and tries the smaller set. Two ranks may
disagree for a while on whether a set came together before one of it died; both then come to the same smaller set, since
the key is made of the communicator that was the first to fail, and not of those tried in between.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hocket import _native
from hocket.comm.fabric import Fabric
from hocket.comm.messages import listed
from hocket.errors import BackendUnavailable, InvalidArgument, InvalidState, InvalidType, PeerFailure
from hocket.trace import logger

if TYPE_CHECKING:
    from hocket.comm.communicator import Communicator


@dataclass(frozen=True)
class Lineage:
    """Where a communicator of survivors comes from.

    Args:
        key: of the communicator that was the first to fail.
        times: how often its present members came together anew.
    """

    key: int
    times: int = 0


def shrink(comm: Communicator, exclude: Collection[int], timeout: float) -> Communicator:
    """See `Communicator.shrink`."""
    if comm._closed or _native.is_forked_child():
        raise InvalidState(f"{comm._label} cannot be used any more: it was finalized, or this is a forked child")
    if comm.is_virtual:
        raise InvalidState("virtual ranks cannot go on without one of them; simulate fewer")
    exclude = listed("exclude", "ranks", exclude)
    for rank in exclude:
        if not isinstance(rank, int):
            raise InvalidType(f"exclude must be a sequence of ranks, which are ints, not {rank!r}")
        if not 0 <= rank < comm.size:
            raise InvalidArgument(f"exclude names rank {rank}; ranks lie between 0 and {comm.size - 1}")
    if comm.rank in exclude:
        raise InvalidArgument(f"rank {comm.rank} is excluded; only those that go on call shrink()")
    fabric = comm._fabric
    before = [member for rank, member in enumerate(comm._members) if rank not in set(exclude)]
    deadline = time.monotonic() + timeout
    while True:
        gone = _find_gone(comm)
        members = [member for member in before if member not in gone]
        again = len(members) == len(comm._members)
        lineage = Lineage(comm._lineage.key, comm._lineage.times + 1 if again else 0)
        try:
            survivors = comm._open(
                _without_broken(fabric, members),
                members,
                f"survivors of {comm._label.removeprefix('survivors of ')}",
                (lineage.key, "survivors", lineage.times, *members),
                max(0.0, deadline - time.monotonic()),
            )
        except PeerFailure:
            if time.monotonic() > deadline:
                raise
            continue
        logger.info("%s: rank %d of %d; gone: %s", survivors._label, survivors.rank, survivors.size, sorted(gone))
        survivors._lineage = lineage
        survivors._on_finalize = lambda: comm._leave(0.0)
        return survivors


def _find_gone(comm: Communicator) -> set[int]:
    """Return the ranks of the job that have died or left it, as far as this one knows."""
    fabric, own = comm._fabric, comm._members[comm.rank]
    gone = set(fabric.control.dead()) if fabric.control is not None else set()
    gone_here = set(fabric.host.gone())
    for rank, (host, local_rank) in enumerate(zip(fabric.layout.hosts, fabric.layout.local_ranks, strict=True)):
        if host == fabric.layout.hosts[own] and local_rank in gone_here:
            gone.add(rank)
    return gone


def _without_broken(fabric: Fabric, members: Collection[int]) -> Fabric:
    """Return what still connects some ranks: libraries that can go on without the others."""
    left_out = dict(fabric.left_out)
    libraries = []
    for library in fabric.libraries:
        reason = library.find_reason_not_to_go_on(members)
        if reason is None:
            libraries.append(library)
        else:
            left_out[library.name] = reason
    if not libraries and fabric.layout.num_hosts(list(members)) > 1:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise BackendUnavailable(f"the survivors are on several hosts, and no library connects them: {reasons}")
    allowed = [name for name in fabric.allowed if name == "shm" or name in {each.name for each in libraries}]
    return replace(fabric, libraries=libraries, left_out=left_out, allowed=allowed or ["shm"])
