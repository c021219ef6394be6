"""Reading data from its owner's memory, or staging it if the kernel forbids that, gives the same results."""

from __future__ import annotations

import numpy as np
import pytest

import hocket as hk
from hocket import _native

from ..tier import sample

LEAST = _native.CONSTANTS["least_direct_bytes"]
# Around every border of the choice (native/shm/direct.cpp, point_to_point_lane.cpp), and odd sizes.
SIZES = [
    LEAST - 8, LEAST, LEAST + 8, 400 << 10, (640 << 10) - 8, 640 << 10, (1 << 20) + 24, (2560 << 10) - 8, 2560 << 10,
    (8 << 20) + 8,
]  # fmt: skip


def _run(comm: hk.Communicator, sizes: list[int]) -> str:
    size, rank = comm.size, comm.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    for nbytes in sizes:
        count = nbytes // 8
        x = [np.random.default_rng([nbytes, each]).integers(-1000, 1000, size * count) for each in range(size)]
        mine = slice(rank * count, (rank + 1) * count)

        gathered = np.empty(size * count, np.int64)
        comm.all_gather(gathered, x[rank][:count].copy())
        np.testing.assert_array_equal(gathered, np.concatenate([each[:count] for each in x]))
        in_place = np.zeros(size * count, np.int64)
        in_place[mine] = x[rank][:count]
        comm.all_gather(in_place, in_place[mine])
        np.testing.assert_array_equal(in_place, gathered)

        received = np.empty(size * count, np.int64)
        comm.all_to_all(received, x[rank].copy())
        np.testing.assert_array_equal(received, np.concatenate([each[mine] for each in x]))

        for root in range(size):
            own = x[rank][:count].copy()
            comm.broadcast(own, root)
            if rank == root:
                own.fill(-1)  # after the return the array may be written at once
            else:
                np.testing.assert_array_equal(own, x[root][:count])

        # More messages than a pair of ranks can track, received in another order than sent.
        messages = [np.arange(count) + 7 * tag + rank for tag in range(3 if nbytes > 1 << 20 else 40)]
        sends = [comm.isend(each, right, tag) for tag, each in enumerate(messages)]
        outs = [np.empty(count, np.int64) for _ in messages]
        works = [comm.irecv(outs[tag], left, tag) for tag in reversed(range(len(messages)))]
        for work in works + sends:
            work.wait()
        for tag, out in enumerate(outs):
            np.testing.assert_array_equal(out, np.arange(count) + 7 * tag + left)
    return comm.backends["shm"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_same_results(monkeypatch: pytest.MonkeyPatch, num_ranks: int, allowed: bool) -> None:
    monkeypatch.setenv("HOCKET_SINGLE_COPY", "1" if allowed else "0")
    words = set(hk.spawn(_run, num_ranks, sample(SIZES, 6), timeout=100))
    expected = "reads" if allowed and _native.has_single_copy() else "does not read"
    assert len(words) == 1 and words.pop().endswith(f", {expected} the memory of peers")
