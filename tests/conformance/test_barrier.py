"""No rank leaves a barrier before all have entered it."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest

import hocket as hk

_ROUNDS = 400


def _run(comm: hk.Communicator, board_path: str) -> int:
    board = np.memmap(board_path, np.int64, "r+")
    delays = random.Random(comm.rank)
    for turn in range(1, _ROUNDS + 1):
        if delays.random() < 0.05:
            time.sleep(delays.random() * 0.005)  # the other ranks must wait for this one
        board[comm.rank] = turn
        if turn % 3:
            comm.barrier()
        else:
            comm.barrier(async_op=True).wait()
        entered = board[: comm.size].copy()
        # No rank is two rounds ahead, because that needs this rank.
        assert ((entered == turn) | (entered == turn + 1)).all(), f"round {turn}: {entered.tolist()} have entered"
    return int(board[comm.rank])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_barrier_holds_everyone(num_ranks: int, tmp_path: Path) -> None:
    board = tmp_path / "board"
    board.write_bytes(bytes(8 * num_ranks))
    assert hk.spawn(_run, num_ranks, str(board), timeout=50) == [_ROUNDS] * num_ranks
