"""Arrays overlap if they have a byte in common, not if only their spans overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hocket as hk

pytestmark = pytest.mark.timeout(60)

Grid = np.ndarray[Any, np.dtype[np.float64]]


def _random_view(random: np.random.Generator, base: Grid) -> Grid:
    """Return a view of a base: its axes are cut, stepped, reversed and permuted, some fixed at one index."""
    cuts = []
    for extent in base.shape:
        begin, end = sorted(random.integers(0, extent + 1, 2))
        step = int(random.integers(1, 4))
        cuts.append(slice(begin, end, step) if random.random() < 0.7 else int(random.integers(0, extent)))
    view = base[tuple(cuts)]
    if view.ndim and random.random() < 0.3:
        view = view[::-1]
    return view.transpose(random.permutation(view.ndim))


def _against_numpy(comm: hk.Communicator) -> tuple[int, int]:
    random = np.random.default_rng(7)
    counts = {True: 0, False: 0}
    for _ in range(1500):
        base = np.zeros(random.integers(2, 7, random.integers(1, 4)))
        # a view of the same memory in another shape has other steps
        other = base.reshape(-1) if random.random() < 0.3 else base
        x, y = (_random_view(random, each) for each in (base, other))
        if x.ndim == 0 or y.ndim == 0:
            continue
        try:
            comm.all_reduce_coalesced([x, y])
            overlap = False
        except hk.InvalidArgument:
            overlap = True
        assert overlap == np.shares_memory(x, y), (x.__array_interface__, y.__array_interface__)
        if np.may_share_memory(x, y):
            counts[overlap] += 1
    return counts[True], counts[False]


def test_it_is_what_numpy_says() -> None:
    for overlapping, apart_within_one_span in hk.spawn(_against_numpy, 1, timeout=50):
        assert overlapping > 100
        assert apart_within_one_span > 50


def _halo(comm: hk.Communicator) -> bool:
    """Each rank has columns of a grid and, on both sides, one column of its neighbour: a halo exchange."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    grid = np.full((50, 6), float(comm.rank))
    grid[:, 0] = grid[:, -1] = -1
    comm.sendrecv(grid[:, -2], right, grid[:, 0], left)
    comm.sendrecv(grid[:, 1], left, grid[:, -1], right)
    np.testing.assert_array_equal(grid[:, 0], left)
    np.testing.assert_array_equal(grid[:, -1], right)
    np.testing.assert_array_equal(grid[:, 1:-1], comm.rank)
    volume = np.full((4, 5, 6), float(comm.rank))
    for axis in range(3):
        faces = np.moveaxis(volume, axis, 0)
        comm.sendrecv(faces[1], right, faces[0], left)
        np.testing.assert_array_equal(faces[0][1:, 1:], left)
    # even items to the right, odd ones from the left
    row = np.arange(20.0) + 100 * comm.rank
    comm.sendrecv(row[::2], right, row[1::2], left)
    np.testing.assert_array_equal(row[1::2], np.arange(0, 20, 2) + 100 * left)
    # blocks of rows and columns, out and x in one array
    table = np.zeros((comm.size, 4))
    table[:, 0] = comm.rank
    comm.all_to_all(table[:, 1], table[:, 0])
    np.testing.assert_array_equal(table[:, 1], range(comm.size))
    with pytest.raises(hk.InvalidArgument):
        comm.sendrecv(grid[:, 1], right, grid[0], left)
    with pytest.raises(hk.InvalidArgument):
        comm.sendrecv(row[::2], right, row[::3], left)
    return True


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_parts_of_one_array_are_exchanged(num_ranks: int) -> None:
    assert all(hk.spawn(_halo, num_ranks, timeout=50))
