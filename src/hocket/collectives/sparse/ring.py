"""Parts of different sizes for all ranks, by messages around a ring."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from hocket.comm import Communicator
    from hocket.comm.steps import Pending

_LEAST_CHUNK_NBYTES = 4096


def all_gather_parts(
    comm: Communicator, own: NDArray[np.uint8], nbytes: NDArray[np.int64], **how: Any
) -> Generator[Pending, None, NDArray[np.uint8]]:
    """Return the parts of all ranks, one after the other; called by all ranks.

    Each rank sends to the next one its own part, then those that it receives, up to the part of the next rank itself.
    So a rank sends and receives each byte at most once, however unequal the parts are. Parts are cut into chunks of the
    mean size: then also the part of a rank that has everything is in many places at once.

    Args:
        comm: a communicator of all ranks.
        own: this rank's part.
        nbytes: number of bytes of each rank's part.
        how: timeout and backend, as for `Communicator.isend`.
    """
    num_ranks, rank = comm.size, comm.rank
    ends = np.cumsum(nbytes)
    total = int(ends[-1])
    out = np.empty(total, np.uint8)
    begins = ends - nbytes
    out[begins[rank] : ends[rank]] = own
    chunk = max(-(-total // num_ranks), _LEAST_CHUNK_NBYTES)
    into, onto = (rank - 1) % num_ranks, (rank + 1) % num_ranks

    def chunks(part: int) -> list[NDArray[np.uint8]]:
        begin, end = int(begins[part]), int(ends[part])
        return [out[at : min(at + chunk, end)] for at in range(begin, end, chunk)]

    coming: deque[tuple[Pending, NDArray[np.uint8], bool]] = deque()
    for distance in range(1, num_ranks):
        part = (rank - distance) % num_ranks
        coming += [(comm.irecv(each, into, **how), each, part != onto) for each in chunks(part)]
    sent = [comm.isend(each, onto, **how) for each in chunks(rank)] if num_ranks > 1 else []
    while coming:
        receive, each, is_forwarded = coming.popleft()
        yield receive
        if is_forwarded:
            sent.append(comm.isend(each, onto, **how))
    yield from sent
    return out
