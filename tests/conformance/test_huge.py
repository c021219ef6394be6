"""Arrays of slightly more than 64 MiB, and of more than 2 GiB."""

from __future__ import annotations

import numpy as np
import pytest

import hocket as hk

from ..tier import full, sample
from .cases import Case
from .data import DTYPES, Array
from .outcome import WrongResult
from .product import run_blocking

_MIB64 = 64 << 20
_GIB = 1 << 30
# Not a divisor of any power of two, so data that is 2**31 or 2**32 bytes off is detected.
_PERIOD = (1 << 22) + 9


def _cases_64_mib(num_ranks: int) -> list[Case]:
    shapes = []
    for dtype, reduction in (("uint8", "max"), ("float32", "sum")):
        items = _MIB64 // DTYPES[dtype].itemsize + 3
        for op, count, root in (
            ("all_reduce", items, -1),
            ("reduce", items, 1),
            ("broadcast", items, 0),
            ("all_gather", items, -1),
            ("reduce_scatter", items // num_ranks + 1, -1),
            ("all_to_all", items // num_ranks + 1, -1),
            ("send_recv", items, -1),
        ):
            shapes.append((op, dtype, count, reduction, root))
    return sample([Case(number, *shape) for number, shape in enumerate(shapes)], 2)


def _run_64_mib(comm: hk.Communicator) -> int:
    return run_blocking(comm, _cases_64_mib(comm.size))


@pytest.mark.timeout(120)
def test_64_mib_and_3_items() -> None:
    assert hk.spawn(_run_64_mib, 2, timeout=100) == [len(_cases_64_mib(2))] * 2


def _pattern(dtype: str, rank: int) -> Array:
    """One period of the input of `rank`; small integers, so that sums are exact in every type."""
    return np.random.default_rng(rank).integers(0, 100, _PERIOD, dtype=np.uint8).astype(dtype)


def _fill(array: Array, pattern: Array) -> None:
    for begin in range(0, array.size, pattern.size):
        part = array[begin : begin + pattern.size]
        part[:] = pattern[: part.size]


def _check(what: str, array: Array, pattern: Array) -> None:
    for begin in range(0, array.size, pattern.size):
        part = array[begin : begin + pattern.size]
        if not np.array_equal(part, pattern[: part.size]):
            at = int(np.flatnonzero(part != pattern[: part.size])[0])
            raise WrongResult(f"{what}: index {begin + at} is {part[at]!r}, not {pattern[at]!r}")


def _run_beyond_2_gib(comm: hk.Communicator) -> list[str]:
    rank, peer = comm.rank, 1 - comm.rank
    mine, theirs = np.empty(2 * _GIB + 32, np.uint8), np.empty(2 * _GIB + 32, np.uint8)
    mine_f, items = mine[:-12].view(np.float32), [_pattern("uint8", r) for r in range(2)]
    floats = [_pattern("float32", r) for r in range(2)]
    odd, half = mine[: 2 * _GIB + 3], _GIB + 5
    done = []

    _fill(mine_f, floats[rank])
    comm.all_reduce(mine_f)
    _check(f"rank {rank}: all_reduce", mine_f, floats[0] + floats[1])
    done.append("all_reduce")

    _fill(mine_f, floats[rank])
    comm.reduce(mine_f, 1)
    _check(f"rank {rank}: reduce", mine_f, floats[0] + floats[1] if rank == 1 else floats[0])
    done.append("reduce")

    _fill(odd, items[rank])
    comm.broadcast(odd, 1)
    _check(f"rank {rank}: broadcast", odd, items[1])
    done.append("broadcast")

    _fill(odd, items[rank])
    receive = comm.irecv(theirs[: odd.size], peer, 3)
    comm.send(odd, peer, 3)
    receive.wait()
    _check(f"rank {rank}: send and recv", theirs[: odd.size], items[peer])
    done.append("send_recv")

    theirs[:] = 255
    comm.all_gather(theirs[: 2 * half], mine[:half])
    for r in range(2):
        _check(f"rank {rank}: all_gather", theirs[r * half : (r + 1) * half], items[r])
    done.append("all_gather")

    for block in range(2):
        _fill(mine[block * half : (block + 1) * half], items[rank] + np.uint8(block))
    theirs[:] = 255
    comm.all_to_all(theirs[: 2 * half], mine[: 2 * half])
    for r in range(2):
        _check(f"rank {rank}: all_to_all", theirs[r * half : (r + 1) * half], items[r] + np.uint8(rank))
    done.append("all_to_all")

    comm.reduce_scatter(theirs[:half], mine[: 2 * half])
    _check(f"rank {rank}: reduce_scatter", theirs[:half], items[0] + items[1] + np.uint8(2 * rank))
    done.append("reduce_scatter")
    return done


@full
@pytest.mark.timeout(180)
def test_beyond_2_gib() -> None:
    every = ["all_reduce", "reduce", "broadcast", "send_recv", "all_gather", "all_to_all", "reduce_scatter"]
    assert hk.spawn(_run_beyond_2_gib, 2, timeout=170) == [every, every]
