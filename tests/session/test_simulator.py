"""Virtual ranks: their clocks, and that they behave as other ranks."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.comm.replay import Replay
from hocket.session import published_steps
from hocket.sim import Hosts, Link, Uniform

pytestmark = pytest.mark.timeout(60)

_ALPHA_S, _BETA_S = 5e-6, 1e-9
_LINK = Link(_ALPHA_S, _BETA_S)


def _run(fn: Any, n: int, *args: Any, **options: Any) -> hk.Simulated:
    return hk.simulate(fn, n, *args, **{"fabric": _LINK, **options})


def test_clocks_of_a_message() -> None:
    def fn(comm: hk.Communicator) -> tuple[float, float]:
        x = np.full(1000, comm.rank, np.uint8)
        if comm.rank == 0:
            comm.compute(1.0)
            comm.send(x, 1)
        else:
            comm.recv(x, 0)
            assert not x.any()
        begin = comm.wtime()
        comm.compute(0.25)
        return begin, comm.wtime() - begin

    ran = _run(fn, 2)
    took = _ALPHA_S + 1000 * _BETA_S
    for begin, computed in ran.results:
        assert begin == pytest.approx(1.0 + took, rel=1e-12)
        assert computed == pytest.approx(0.25, rel=1e-12)
    assert ran.seconds == pytest.approx(1.25 + took) and ran.rank_seconds == pytest.approx([ran.seconds] * 2)


def test_a_receive_is_over_when_both_are_there() -> None:
    def fn(comm: hk.Communicator) -> float:
        x = np.zeros(10, np.uint8)
        if comm.rank == 0:
            comm.isend(x, 1).wait()
            return comm.wtime()
        comm.compute(2.0)
        comm.recv(x, 0)  # it arrived long ago
        return comm.wtime()

    assert _run(fn, 2).results == pytest.approx([_ALPHA_S + 10 * _BETA_S, 2.0])


def test_a_collective_begins_with_the_last_of_its_ranks() -> None:
    def fn(comm: hk.Communicator) -> float:
        comm.compute(0.1 * comm.rank)
        comm.barrier()
        return comm.wtime()

    assert _run(fn, 4).results == pytest.approx([0.3 + 2 * _ALPHA_S] * 4)


def test_what_is_computed_meanwhile_is_hidden() -> None:
    nbytes = 1 << 20

    def fn(comm: hk.Communicator, compute_s: float) -> float:
        x = np.zeros(nbytes // 4, np.float32)
        work = comm.all_reduce(x, async_op=True)
        comm.compute(compute_s)
        assert work.done == (compute_s > 0.1)
        work.wait()
        return comm.wtime()

    alone = _run(fn, 2, 0.0).seconds
    assert alone >= nbytes * _BETA_S
    assert _run(fn, 2, alone / 2).seconds == pytest.approx(alone)
    assert _run(fn, 2, 0.5).seconds == pytest.approx(0.5)


def test_dependent_operations_follow_while_the_rank_computes() -> None:
    def fn(comm: hk.Communicator) -> float:
        x = np.full(1000, 1.0)
        works = [comm.all_reduce(x, async_op=True) for _ in range(3)]  # on the same bytes
        comm.compute(1.0)
        assert all(work.done for work in works)
        assert (x == comm.size**3).all()
        last = comm.records()[-1]
        assert last.seconds is not None
        return last.begin_ns * 1e-9 + last.seconds

    end = _run(fn, 2).results[0]
    assert end == pytest.approx(3 * (_ALPHA_S + 8000 * _BETA_S), rel=1e-3)


def test_looking_again_and_again_takes_time() -> None:
    def fn(comm: hk.Communicator) -> float:
        work = comm.barrier(async_op=True)
        while not work.test():
            pass
        return comm.wtime()

    for seconds in _run(fn, 2).results:
        assert _ALPHA_S <= seconds <= _ALPHA_S + 2e-6


def test_a_connection_carries_one_message_at_a_time() -> None:
    def fn(comm: hk.Communicator) -> float:
        x = np.zeros(1_000_000, np.uint8)
        if comm.rank == 0:
            for work in [comm.irecv(np.empty_like(x), peer) for peer in (1, 2, 3)]:
                work.wait()
        else:
            comm.send(x, 0)
        return comm.wtime()

    one = _ALPHA_S + 1e6 * _BETA_S
    assert sorted(_run(fn, 4).results) == pytest.approx([one, 2 * one, 3 * one, 3 * one])


def test_groups_objects_and_forms() -> None:
    def fn(comm: hk.Communicator) -> Any:
        half = comm.split(comm.rank % 2, key=-comm.rank)
        assert half is not None and half.size == 3 and half.is_virtual
        members = half.all_gather_object(comm.rank)
        with comm.coalesced():
            x = np.full(3, comm.rank)
            comm.all_reduce(x, "max")
        with comm.fused() as fused:
            y = np.full(3, 1.0)
            fused.all_reduce(y)
        prepared = comm.prepare("all_reduce", np.zeros(5, np.float32))
        for _ in range(3):
            prepared()
        right = (comm.rank + 1) % comm.size
        out = np.zeros(1, np.int64)
        comm.sendrecv(np.array([comm.rank]), right, out, (comm.rank - 1) % comm.size)
        asyncio.run(_awaited(comm))
        comm.dup().barrier()
        comm.quiesce()
        return members, x[0], y[0], int(out[0])

    results = _run(fn, 6).results
    for rank, (members, largest, total, left) in enumerate(results):
        assert members == [each for each in (5, 4, 3, 2, 1, 0) if each % 2 == rank % 2]
        assert (largest, total, left) == (5, 6.0, (rank - 1) % 6)


async def _awaited(comm: hk.Communicator) -> None:
    await comm.barrier(async_op=True)


def test_the_same_program_takes_the_same_time() -> None:
    def fn(comm: hk.Communicator) -> list[tuple[str, int, float | None]]:
        random = np.random.default_rng(comm.rank)
        for _ in range(20):
            comm.compute(random.random() * 1e-4)
            comm.all_reduce(np.zeros(100), async_op=True)
            comm.sendrecv(np.zeros(10), (comm.rank + 3) % comm.size, np.zeros(10), (comm.rank - 3) % comm.size)
        comm.synchronize()
        return [(record.op, record.begin_ns, record.seconds) for record in comm.records()]

    runs = [_run(fn, 8) for _ in range(2)]
    assert runs[0].rank_seconds == runs[1].rank_seconds and runs[0].results == runs[1].results


def test_only_time_passes_without_data() -> None:
    def fn(comm: hk.Communicator) -> np.ndarray:
        x = np.full(1000, comm.rank)
        comm.all_reduce(x)
        comm.send(x, comm.rank)
        return x

    def receiving(comm: hk.Communicator) -> np.ndarray:
        work = comm.irecv(np.zeros(1000, np.int64), comm.rank)
        x = fn(comm)
        work.wait()
        return x

    for rank, x in enumerate(_run(receiving, 3, moves_data=False).results):
        assert (x == rank).all()


def test_many_ranks() -> None:
    def fn(comm: hk.Communicator) -> float:
        x = np.ones(1)
        comm.all_reduce(x)
        return float(x[0])

    ran = _run(fn, 1024)
    assert ran.results == [1024.0] * 1024
    assert ran.seconds == pytest.approx(10 * (_ALPHA_S + 8 * _BETA_S))
    assert ran.algorithms == {("all_reduce", 8, 1024): "recursive_doubling"}


def test_hosts() -> None:
    outer = Link.of(20.0, 1.0)
    fabric = Hosts(Link.of(1.0, 10.0), outer, 4)

    def fn(comm: hk.Communicator) -> tuple[int, int, int, float]:
        comm.all_gather(np.zeros((comm.size, 1 << 20), np.uint8), np.zeros(1 << 20, np.uint8))
        return comm.num_hosts, comm.local_size, comm.local_rank, comm.wtime()

    ran = hk.simulate(fn, 8, fabric=fabric, moves_data=False)
    assert [result[:3] for result in ran.results] == [(2, 4, rank % 4) for rank in range(8)]
    assert ran.algorithms["all_gather", 1 << 20, 8].startswith("hierarchical(ranks_per_host=4")
    least = 4 * (1 << 20) * outer.beta_s  # each host must receive the other's data
    assert least < ran.seconds < 2 * least

    def across(comm: hk.Communicator) -> float:  # two concurrent messages share the uplink
        x = np.zeros(1 << 20, np.uint8)
        if comm.rank < 2:
            comm.send(x, comm.rank + 4)
        elif comm.rank in (4, 5):
            comm.recv(x, comm.rank - 4)
        return comm.wtime()

    seconds = hk.simulate(across, 8, fabric=fabric).results
    assert max(seconds) == pytest.approx(outer.alpha_s + 2 * outer.beta_s * (1 << 20))


def test_traffic_of_a_model() -> None:
    traffic = published_steps.dlrm_criteo(16, flops_per_s=1e14)
    made: list[Replay] = []

    def fn(comm: hk.Communicator) -> None:
        made.append(Replay(comm, traffic, computes=True, like=made[0] if made else None))
        made[-1]()

    slow, fast = (
        hk.simulate(fn_of, 16, fabric=Uniform(link), moves_data=False).seconds
        for fn_of, link in ((fn, Link.of(30, 1.25)), (fn, Link.of(2, 12.5)))
        if made.clear() is None
    )
    sent = sum(step.nbytes for step in traffic.steps if step.kind == "all_reduce")
    assert slow > 2 * 15 / 16 * sent / 1.25e9 > fast > sum(step.compute_s for step in traffic.steps)
