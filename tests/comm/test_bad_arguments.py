"""Invalid ranks, roots, tags, names and times."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import hocket as hk
from hocket.errors import BackendUnavailable, HocketError, InvalidArgument, InvalidType, UnsupportedDtype

from .bad_calls import BadCall, Outcome, bad, find_faults, run_bad_calls

_NUM_RANKS = 2
_ROOTED: dict[str, Callable[[hk.Communicator, object], object]] = {
    "root of reduce": lambda c, rank: c.reduce(np.zeros(4), rank),  # type: ignore[arg-type]
    "root of broadcast": lambda c, rank: c.broadcast(np.zeros(4), rank),  # type: ignore[arg-type]
    "dst of send": lambda c, rank: c.send(np.zeros(4), rank),  # type: ignore[arg-type]
    "dst of isend": lambda c, rank: c.isend(np.zeros(4), rank),  # type: ignore[arg-type]
    "src of recv": lambda c, rank: c.recv(np.zeros(4), rank),  # type: ignore[arg-type]
    "src of irecv": lambda c, rank: c.irecv(np.zeros(4), rank),  # type: ignore[arg-type]
}
_RANKS: dict[str, tuple[object, type[HocketError], str]] = {
    "negative": (-1, InvalidArgument, "0 to 1"),
    "too large": (_NUM_RANKS, InvalidArgument, "0 to 1"),
    "beyond 64 bits": (2**70, InvalidArgument, "0 to 1"),
    "text": ("0", InvalidType, "str"),
    "float": (1.0, InvalidType, "float"),
    "None": (None, InvalidType, "NoneType"),
}


def _x() -> np.ndarray:
    return np.zeros(4)


def _timeout(value: object) -> BadCall:
    return bad(lambda c: c.all_reduce(_x(), timeout=value), InvalidArgument, "timeout")  # type: ignore[call-overload]


_CALLS = {
    **{
        f"{what}: {name}": bad(lambda c, call=call, rank=rank: call(c, rank), error, what.split()[0], words)
        for what, call in _ROOTED.items()
        for name, (rank, error, words) in _RANKS.items()
    },
    **{
        f"op {op!r}": bad(lambda c, op=op: c.all_reduce(_x(), op), InvalidArgument, "op", repr(op), "'sum'", "'avg'")
        for op in ("mean", "SUM", "", None, 3)
    },
    "op of reduce_scatter": bad(lambda c: c.reduce_scatter(np.zeros(2), _x(), "or"), InvalidArgument, "'or'"),
    "op of reduce": bad(lambda c: c.reduce(_x(), 0, op="or"), InvalidArgument, "'or'"),
    **{
        f"tag {tag!r}": bad(lambda c, tag=tag: c.isend(_x(), 0, tag), InvalidArgument, "tag", "0 to 2147483647")
        for tag in (-1, 2**31, 2**70, "a", 1.5, None)
    },
    "operation to explain": bad(lambda c: c.explain("all_reducee", 8), InvalidArgument, "'all_reducee'", "all_reduce"),
    "array to explain": bad(lambda c: c.explain("all_reduce", _x()), InvalidArgument, "ndarray", "x.nbytes"),
    "size to explain": bad(lambda c: c.explain("all_reduce", -8), InvalidArgument, "-8"),
    "tag of recv": bad(lambda c: c.recv(_x(), 0, -5), InvalidArgument, "tag"),
    **{f"timeout {value!r}": _timeout(value) for value in (0, -1.0, float("nan"), "soon")},
    "timeout of recv": bad(lambda c: c.recv(_x(), 0, timeout=0), InvalidArgument, "timeout"),
    "timeout of barrier": bad(lambda c: c.barrier(timeout=-3), InvalidArgument, "timeout"),
    "backend nccl": bad(lambda c: c.all_reduce(_x(), backend="nccl"), BackendUnavailable, "'nccl'", "'shm'", "'mpi'"),
    "backend left out": bad(lambda c: c.all_reduce(_x(), backend="gloo"), BackendUnavailable, "'gloo'", "torch"),
    "deps no sequence": bad(lambda c: c.all_reduce(_x(), deps=3), InvalidType, "deps", "int"),
    "deps no Work": bad(lambda c: c.all_reduce(_x(), deps=[_x()]), InvalidType, "deps", "ndarray"),
    "deps of send": bad(lambda c: c.send(_x(), 1, deps=()), InvalidType, "send()", "deps"),
    "backend 3": bad(lambda c: c.barrier(backend=3), BackendUnavailable, "3", "'shm'"),
    "unknown keyword": bad(lambda c: c.all_reduce(_x(), schedule="ring"), InvalidType, "schedule", "async_op"),
    "unknown algorithm": bad(lambda c: c.all_reduce(_x(), algorithm="rung"), InvalidArgument, "'rung'", "ring"),
    "algorithm of another": bad(lambda c: c.all_reduce(_x(), algorithm="chain"), InvalidArgument, "'chain'", "ring"),
    "algorithm of gather": bad(
        lambda c: c.gather(np.zeros((c.size, 4)) if c.rank == 0 else None, np.zeros(4), 0, algorithm="ring"),
        InvalidArgument,
        "gather",
        "native",
    ),
    "parameter of an algorithm": bad(
        lambda c: c.broadcast(_x(), 0, algorithm="chain(blocks=2)"), InvalidArgument, "blocks=2", "num_blocks"
    ),
    "no algorithm": bad(lambda c: c.all_reduce(_x(), algorithm=7), InvalidType, "algorithm", "int"),
    "average of halves": bad(
        lambda c: c.all_reduce(np.zeros(4, np.float16), "avg", algorithm="ring"), UnsupportedDtype, "ring", "float16"
    ),
    "async_op of send": bad(lambda c: c.send(_x(), 1, async_op=True), InvalidType, "send()", "async_op"),
    "nothing at all": bad(lambda c: c.all_reduce(), InvalidType, "all_reduce()", "x"),
    "no root": bad(lambda c: c.broadcast(_x()), InvalidType, "broadcast()", "root"),
    "no x": bad(lambda c: c.all_gather(out=_x()), InvalidType, "all_gather()", "x"),
    "twice": bad(lambda c: c.all_reduce(_x(), x=_x()), InvalidType, "x", "twice"),
    "too many": bad(lambda c: c.all_reduce(_x(), "sum", "shm"), InvalidType, "2"),
    "barrier of something": bad(lambda c: c.barrier(_x()), InvalidType, "barrier()", "0"),
    "async_op without truth": bad(lambda c: c.all_reduce(_x(), async_op=np.zeros(2)), InvalidArgument, "async_op"),
    "to itself": bad(lambda c: c.send(_x(), c.rank, 5), InvalidArgument, "itself", "tag 5", "irecv"),
    "split negative": bad(lambda c: c.split(-1), InvalidArgument, "color", "-1"),
    "split text": bad(lambda c: c.split("a"), InvalidArgument, "color", "'a'"),  # type: ignore[arg-type]
    "split too large": bad(lambda c: c.split(2**63), InvalidArgument, "color"),
    "split key": bad(lambda c: c.split(0, key="x"), InvalidArgument, "key", "'x'"),  # type: ignore[arg-type]
    "group out of range": bad(lambda c: c.group([0, 1, 2]), InvalidArgument, "[0, 1, 2]", "0", "1"),
    "group negative": bad(lambda c: c.group([-1, c.rank]), InvalidArgument, "-1"),
    "group twice": bad(lambda c: c.group([0, 1, 0]), InvalidArgument, "[0, 1, 0]", "twice"),
    "group without me": bad(lambda c: c.group([1 - c.rank]), InvalidArgument, "members"),
    "group of nobody": bad(lambda c: c.group([]), InvalidArgument, "[]"),
    "group of text": bad(lambda c: c.group(["0", "1"]), InvalidType, "ints", "'0'"),  # type: ignore[list-item]
    "group of a number": bad(lambda c: c.group(2), InvalidType, "ranks", "int"),  # type: ignore[arg-type]
}


def _run(comm: hk.Communicator) -> dict[str, Outcome]:
    return run_bad_calls(comm, _CALLS)


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Outcome]]:
    return hk.spawn(_run, _NUM_RANKS, timeout=60)


@pytest.mark.timeout(70)
@pytest.mark.parametrize("name", _CALLS)
def test_bad_argument(outcomes: list[dict[str, Outcome]], name: str) -> None:
    assert find_faults(_CALLS[name], [of_rank[name] for of_rank in outcomes]) == []


def _run_number_kinds(comm: hk.Communicator) -> list[int]:
    """NumPy's integers are accepted as integers, and infinity as a time."""
    one = np.int64(1)
    x = np.array([comm.rank])
    comm.broadcast(x, one, timeout=float("inf"))
    if comm.rank == 0:
        comm.recv(x, one, np.int32(3), timeout=1e300)
    else:
        comm.send(x, np.uint8(0), np.int32(3), timeout=np.float64(30))
    half = comm.split(np.int64(comm.rank), key=np.int32(0))
    pair = comm.group(np.arange(2))
    assert half is not None
    return [int(x[0]), half.size, pair.size]


@pytest.mark.timeout(40)
def test_numbers_of_other_kinds() -> None:
    assert hk.spawn(_run_number_kinds, _NUM_RANKS, timeout=30) == [[1, 1, 2]] * 2
