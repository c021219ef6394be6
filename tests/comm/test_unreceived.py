"""Messages that nobody receives, of which the rank that leaves is told."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import hocket as hk

from ..naming import assert_names

pytestmark = pytest.mark.timeout(60)


def _leave(comm: hk.Communicator, sends: list[tuple[int, int]], received: int) -> list[str]:
    """Rank 0 sends messages of (items, tag), of which rank 1 receives some; return what rank 1 hears as it leaves."""
    part = comm.dup()
    x: Any = np.ones(1 << 16)
    if comm.rank == 0:
        works = [part.isend(x[:num_items], 1, tag) for num_items, tag in sends]
        comm.barrier()
        del works
    else:
        comm.barrier()
        for num_items, tag in sends[:received]:
            part.recv(x[:num_items], 0, tag)
    heard = []
    if comm.rank == 1:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            part.finalize()
        heard = [str(each.message) for each in caught]
    comm.barrier()
    if comm.rank == 0:
        try:
            part.finalize()
        except hk.PeerFailure:  # a long message waits for its receive
            pass
    return heard


@pytest.mark.parametrize(
    ("sends", "received", "names"),
    [
        ([(4, 7)], 0, ("rank 1", "rank 0", "tag 7", "32")),
        ([(4, 7), (2, 7)], 1, ("tag 7", "16")),
        ([(1 << 16, 3)], 0, ("tag 3", "524288")),
        ([(1, tag) for tag in range(5)], 0, ("tag 0", "tag 2", "2")),
    ],
)
def test_they_are_named(sends: list[tuple[int, int]], received: int, names: tuple[str, ...]) -> None:
    _, (told,) = hk.spawn(_leave, 2, sends, received, timeout=50)
    assert_names(told, *names)


def test_nothing_is_said_where_all_are_received() -> None:
    assert hk.spawn(_leave, 2, [(4, 7), (1000, 2)], 2, timeout=50) == [[], []]
