"""Communicators of ranks that find each other through torch's store."""

from __future__ import annotations

from contextlib import nullcontext

from torch._C._distributed_c10d import Store

from hocket.comm import Communicator
from hocket.session import check_reach, connect_ranks
from hocket.torch.meeting import arrange_meeting
from hocket.torch.options import Options


def open_communicator(
    store: Store, rank: int, size: int, timeout_s: float, *, chosen: Options | None, is_at_master: bool
) -> Communicator:
    """Connect to the other ranks and make the communicator of all of them.

    Args:
        store, rank, size, timeout_s: see `arrange_meeting`.
        chosen: the libraries that the caller named; None: shared memory, and gloo with several hosts.
        is_at_master: whether rank 0 is on the host that MASTER_ADDR names.
    """
    meeting = arrange_meeting(
        *(store, rank, size, timeout_s),
        is_at_master=is_at_master,
        check=lambda hosts: check_reach(None if chosen is None else chosen.backends, hosts),
    )
    # By default gloo, which every torch has, connects hosts: shared memory cannot.
    options = chosen or Options("shm" if meeting.server is None else ("shm", "gloo"))
    with meeting.started or nullcontext():
        return connect_ranks(
            *(meeting.name, rank, meeting.hosts),
            timeout=timeout_s,
            server=meeting.server,
            backends=options.backends,
            policy=options.policy,
        )
