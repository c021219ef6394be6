"""The records of a communicator's operations."""

from __future__ import annotations

import time

import numpy as np
import pytest

import hocket as hk
from hocket import _native
from hocket.errors import CollectiveMismatch

from ..naming import assert_names
from .bad_calls import attempt


def _fields(record: hk.Record) -> tuple[object, ...]:
    return (record.op, record.seq, record.nbytes, record.dtype, record.reduction, record.peer, record.tag,
            record.state, record.is_async)  # fmt: skip


def _run(comm: hk.Communicator) -> list[tuple[object, ...]]:
    other, before_ns = 1 - comm.rank, time.monotonic_ns()
    comm.barrier()
    comm.all_reduce(np.zeros(3, np.float32), "max")
    comm.reduce(np.zeros(100_000), 1)
    comm.broadcast(np.zeros(5, np.int16), 0, async_op=True).wait()
    comm.all_gather(np.zeros(8, np.uint8), np.zeros(4, np.uint8))
    comm.reduce_scatter(np.zeros(4), np.zeros(8), "avg", async_op=True).wait()
    comm.all_to_all(np.zeros(6, np.int64), np.zeros(6, np.int64))
    receive = comm.irecv(np.zeros(2, bool), other, 5)
    comm.send(np.zeros(2, bool), other, 5)
    receive.wait()
    comm.dup()
    assert isinstance(attempt(lambda: comm.all_reduce(np.zeros(1 + comm.rank))), CollectiveMismatch)
    pending = comm.irecv(np.zeros(2), other, 6)
    records = comm.records()
    assert repr(records) == repr(comm.records())
    for record in records:
        assert isinstance(record, hk.Record)
        assert record.backend == "shm"
        assert before_ns - 1_000_000 < record.begin_ns < time.monotonic_ns() + 1_000_000, (before_ns, record)
        assert record.seconds is None if record.state in ("issued", "started") else 0 < record.seconds < 10, record
    comm.barrier()
    comm.isend(np.zeros(2), other, 6)
    pending.wait()
    return [_fields(record) for record in records]


@pytest.mark.timeout(40)
def test_fields_of_records() -> None:
    for rank, records in enumerate(hk.spawn(_run, 2, timeout=30)):
        other = 1 - rank
        assert records == [
            ("barrier", 1, 0, "uint8", None, None, 0, "completed", False),
            ("all_reduce", 2, 12, "float32", "max", None, 0, "completed", False),
            ("reduce", 3, 800_000, "float64", "sum", 1, 0, "completed", False),
            ("broadcast", 4, 10, "int16", None, 0, 0, "completed", True),
            ("all_gather", 5, 4, "uint8", None, None, 0, "completed", False),
            ("reduce_scatter", 6, 32, "float64", "avg", None, 0, "completed", True),
            ("all_to_all", 7, 24, "int64", None, None, 0, "completed", False),
            ("recv", 1, 2, "bool", None, other, 5, "completed", True),
            ("send", 1, 2, "bool", None, other, 5, "completed", False),
            ("dup", 8, 16, "int64", None, None, 0, "completed", False),
            ("all_reduce", 9, 8 * (1 + rank), "float64", "sum", None, 0, "failed", False),
            ("recv", 2, 16, "float64", None, other, 6, "started", True),
        ]


def _run_ring(comm: hk.Communicator) -> list[int]:
    most = _native.CONSTANTS["events"]
    for _ in range(most + 100):
        comm.barrier()
    seqs = [record.seq for record in comm.records()]
    return [len(seqs), seqs[0], seqs[-1], int(seqs == sorted(seqs))]


@pytest.mark.timeout(40)
def test_only_the_latest_are_kept() -> None:
    most = _native.CONSTANTS["events"]
    assert hk.spawn(_run_ring, 2, timeout=30) == [[most, 101, most + 100, 1]] * 2


def _run_work(comm: hk.Communicator) -> list[object]:
    x = np.ones(4, np.float32)
    work = comm.irecv(x, 1 - comm.rank, 3)
    facts: list[object] = [work.done, work.test(), work.exception(), work.seq, repr(work)]
    comm.barrier()
    comm.isend(np.ones(4, np.float32), 1 - comm.rank, 3)
    work.wait()
    return [*facts, work.done, work.test(), work.exception(), repr(work)]


@pytest.mark.timeout(40)
def test_work() -> None:
    for rank, facts in enumerate(hk.spawn(_run_work, 2, timeout=30)):
        assert facts[:4] == [False, False, None, 1]
        assert facts[5:8] == [True, True, None]
        for shown in (begun := str(facts[4]), done := str(facts[8])):
            assert_names(shown, "<hocket.Work", "recv", f"rank {1 - rank}", "tag 3", "16", "float32", "1")
        assert begun != done


def _lose_time(comm: hk.Communicator) -> tuple[float, float, float]:
    """Rank 1 is half a second late: a rank that waits at once loses this time, one that computes does not."""
    x = np.zeros(4)
    comm.barrier()
    for waits_at_once in (True, False):
        if comm.rank == 1:
            time.sleep(0.5)
        work = comm.all_reduce(x, async_op=True)
        if not waits_at_once:
            time.sleep(1.5)
        work.wait()
        comm.barrier()
    comm.all_reduce(x)
    waited, hidden, blocking = (record for record in comm.records() if record.op == "all_reduce")
    assert waited.blocked_s is not None and hidden.blocked_s is not None
    assert blocking.blocked_s == blocking.seconds
    return waited.blocked_s, hidden.blocked_s, hidden.seconds or 0.0


@pytest.mark.timeout(40)
def test_time_lost_to_asynchronous_operations() -> None:
    early, late = hk.spawn(_lose_time, 2, timeout=30)
    assert early[0] > 0.4 > late[0]
    assert early[1] < 0.4 and early[2] > 0.4
