"""Operations executed by schedules, compared with NumPy, over every backend; and the bytes that they send."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.collectives import Algorithm, algorithms, find_algorithm, make_schedule
from hocket.collectives.execute import execute
from hocket.collectives.schedule import Transfers
from hocket.collectives.simulate import simulate
from hocket.collectives.source import format_algorithm, parse_algorithm
from hocket.comm.policy import Policy, Range
from hocket.sim import Link

from ..backends import ALL, WITH_COLLECTIVES, limit_threads, with_most_ranks, with_ranks
from ..load import scaled
from ..naming import assert_names, raises
from ..tier import full, is_full

Array = np.ndarray[Any, Any]
COUNTS = (0, 1, 5, 1000, 70_001)
DTYPES = ("float32", "int64", "float64", "uint8", "complex64", "float16")


def _start(comm: hk.Communicator, backend: str) -> hk.Communicator:
    if backend == "shm":
        return comm
    limit_threads(backend)
    comm.finalize()
    return hk.init(backends=["shm", backend], timeout=scaled(60))


def _values(seed: list[int], count: int, dtype: str) -> Array:
    return np.random.default_rng(seed).integers(0, 9, count).astype(dtype)


def _check_case(comm: hk.Communicator, collective: str, turn: int, count: int, **how: Any) -> int:
    """Run one operation and check its result; return the size in bytes that its formula calls m."""
    rank, size, dtype = comm.rank, comm.size, DTYPES[turn % len(DTYPES)]
    root = turn % size
    given = [_values([turn, count, each], count, dtype) for each in range(size)]
    x = given[rank].copy()
    total = functools.reduce(lambda a, b: (a + b).astype(dtype), given)

    def run(call: Any, *arguments: Any) -> None:
        work = call(*arguments, **how)
        if how.get("async_op"):
            work.wait()

    match collective:
        case "barrier":
            run(comm.barrier)
            return 0
        case "broadcast":
            run(comm.broadcast, x, root)
            np.testing.assert_array_equal(x, given[root])
        case "reduce":
            run(comm.reduce, x, root)
            np.testing.assert_array_equal(x, total if rank == root else given[rank])
        case "all_reduce":
            run(comm.all_reduce, x)
            np.testing.assert_array_equal(x, total)
        case "scan":
            run(comm.scan, x)
            np.testing.assert_array_equal(x, functools.reduce(lambda a, b: (a + b).astype(dtype), given[: rank + 1]))
        case "all_gather":
            out = np.zeros((size, count), dtype)
            run(comm.all_gather, out, x)
            np.testing.assert_array_equal(out, given)
            out[rank] = given[rank]
            run(comm.all_gather, out, out[rank])  # in place
            np.testing.assert_array_equal(out, given)
            return size * x.nbytes
        case "reduce_scatter":
            wide = np.stack([_values([turn, count, rank, each], count, dtype) for each in range(size)])
            kept = wide.copy()
            run(comm.reduce_scatter, x, wide)
            of_all = [_values([turn, count, each, rank], count, dtype) for each in range(size)]
            np.testing.assert_array_equal(x, functools.reduce(lambda a, b: (a + b).astype(dtype), of_all))
            np.testing.assert_array_equal(wide, kept)
            return size * x.nbytes
        case _:
            wide = np.stack([_values([turn, count, rank, each], count, dtype) for each in range(size)])
            out = np.zeros_like(wide)
            run(comm.all_to_all, out, wide)
            np.testing.assert_array_equal(
                out, np.stack([_values([turn, count, each, rank], count, dtype) for each in range(size)])
            )
            return size * x.nbytes
    return x.nbytes


def _check_record(comm: hk.Communicator, algorithm: Algorithm, turn: int, nbytes: int) -> None:
    """A rank sends the same bytes as in the simulation."""
    record = comm.records()[-1]
    assert (record.op, record.state) == (algorithm.collective, "completed")
    found, parameters = parse_algorithm(algorithm.collective, record.algorithm)
    assert found is algorithm
    itemsize = np.dtype(DTYPES[turn % len(DTYPES)]).itemsize
    root = (record.peer or 0) if algorithm.collective in ("broadcast", "reduce") else 0
    simulated = simulate(found.schedule(comm.size, **parameters), nbytes, Link(1e-6, 1e-9), itemsize=itemsize)
    assert record.sent_nbytes == simulated.bytes_sent[(comm.rank - root) % comm.size], record


def _turns(number: int) -> list[int]:
    """Indices of the counts that an algorithm is tested with: all in the full tier, otherwise one in turn."""
    return list(range(len(COUNTS))) if is_full() else [number % len(COUNTS)]


def _run(comm: hk.Communicator, backend: str) -> int:
    comm = _start(comm, backend)
    checked = 0
    for number, algorithm in enumerate(algorithms()):
        if algorithm.restriction(comm.size) is not None:
            continue
        for turn in _turns(number):
            count = COUNTS[turn]
            is_async = turn % 2 == 1
            how = {"backend": backend, "algorithm": algorithm.name, "async_op": is_async, "timeout": 30}
            nbytes = _check_case(comm, algorithm.collective, turn, count, **how)
            _check_record(comm, algorithm, turn, nbytes)
            checked += 1
    comm.finalize()
    return checked


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("backend", "num_ranks"),
    [("shm", 1), pytest.param("shm", 8, marks=full), *with_ranks(ALL, least=2, quick_up_to=5)],
)
def test_every_algorithm_against_numpy(backend: str, num_ranks: int) -> None:
    checked = hk.spawn(_run, num_ranks, backend, timeout=180)
    assert min(checked) >= 35 * len(_turns(0))


def _counts(comm: hk.Communicator, backend: str) -> bool:
    """Blocks of different sizes, some of them empty."""
    comm = _start(comm, backend)
    rank, size = comm.rank, comm.size
    for turn, most in enumerate((3, 40_000)):
        counts = [(3 * each * most // 4 + turn) % (most + 1) for each in range(size)]
        ends = np.cumsum([0, *counts])
        parts = [_values([turn, each], counts[each], "float32") for each in range(size)]
        for name in ("ring", "bruck", "circulant", "circulant(num_blocks=3)"):
            out = np.zeros(ends[-1], np.float32)
            comm.all_gatherv(out, parts[rank], counts, backend=backend, algorithm=name)
            np.testing.assert_array_equal(out, np.concatenate(parts))
        given = [_values([turn, each, 1], int(ends[-1]), "float32") for each in range(size)]
        for name in ("ring", "circulant"):
            block = np.zeros(counts[rank], np.float32)
            comm.reduce_scatterv(block, given[rank], counts, backend=backend, algorithm=name)
            np.testing.assert_array_equal(block, np.sum(given, axis=0)[ends[rank] : ends[rank + 1]])
        sizes = [[(each * 7 + other * 5 + turn) % (most + 1) for other in range(size)] for each in range(size)]
        sent = [_values([turn, each, 2], sum(sizes[each]), "float32") for each in range(size)]
        got = [sizes[each][rank] for each in range(size)]
        expected = np.concatenate([np.split(sent[each], np.cumsum(sizes[each])[:-1])[rank] for each in range(size)])
        for name in ("pairwise", "windowed"):
            out = np.zeros(sum(got), np.float32)
            comm.all_to_allv(out, sent[rank], got, sizes[rank], backend=backend, algorithm=name)
            np.testing.assert_array_equal(out, expected)
        with raises(hk.UnsupportedDtype, names="bruck"):
            comm.all_to_allv(out, sent[rank], got, sizes[rank], backend=backend, algorithm="bruck")
    comm.finalize()
    return True


@pytest.mark.timeout(90)
@pytest.mark.parametrize(("backend", "num_ranks"), [("shm", 4), *with_most_ranks(WITH_COLLECTIVES, 3)])
def test_blocks_of_different_sizes(backend: str, num_ranks: int) -> None:
    assert all(hk.spawn(_counts, num_ranks, backend, timeout=80))


def _order(comm: hk.Communicator) -> bool:
    """Reduced in rank order for any number of blocks: bitwise equal to a loop over the ranks."""
    given = [np.random.default_rng(each).standard_normal(10_001).astype(np.float32) for each in range(comm.size)]
    expected = functools.reduce(np.add, given)
    for num_blocks in (1, 3, 16):
        x = given[comm.rank].copy()
        comm.all_reduce(x, algorithm=f"fixed_order(num_blocks={num_blocks})")
        assert x.tobytes() == expected.tobytes()
    for algorithm in algorithms("all_reduce"):  # any order: equal on all ranks
        if algorithm.restriction(comm.size) is None:
            x = given[comm.rank].copy()
            comm.all_reduce(x, algorithm=algorithm.name)
            np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-4)
            results = comm.all_gather_object(x.tobytes())
            assert results.count(results[0]) == comm.size, algorithm.name
    x = given[comm.rank].astype(np.float64)
    comm.all_reduce(x, "avg", algorithm="ring")
    np.testing.assert_allclose(x, np.mean(given, axis=0, dtype=np.float64), rtol=1e-6)
    x = given[comm.rank].copy()
    x[0] = np.nan if comm.rank == 1 else 1.0
    comm.all_reduce(x, "max", algorithm="rabenseifner")
    assert np.isnan(x[0])
    np.testing.assert_array_equal(x[1:], np.max(given, axis=0)[1:])
    return True


@pytest.mark.timeout(90)
@pytest.mark.parametrize("num_ranks", [2, 5])
def test_order_of_reductions(num_ranks: int) -> None:
    assert all(hk.spawn(_order, num_ranks, timeout=80))


def _in_flight(comm: hk.Communicator, backend: str) -> bool:
    """Several at the same time, mixed with the library's own and with messages, waited for in any order."""
    comm = _start(comm, backend)
    names = ("ring", "native", "circulant", "recursive_doubling", "segmented_ring(num_segments=3)", "native")
    xs = [np.full(20_000, float(number + comm.rank)) for number in range(len(names))]
    to = (comm.rank + 1) % comm.size
    message = comm.isend(np.arange(5.0), to)
    works = [
        comm.all_reduce(x, backend=backend, algorithm=name, async_op=True) for x, name in zip(xs, names, strict=True)
    ]
    received = np.zeros(5)
    comm.recv(received, (comm.rank - 1) % comm.size)
    message.wait()
    for work in reversed(works):
        work.wait()
    for number, x in enumerate(xs):
        np.testing.assert_array_equal(x, sum(number + rank for rank in range(comm.size)))
    prepared = comm.prepare("all_reduce", xs[0], backend=backend, algorithm="ring")
    xs[0][:] = 1.0
    prepared()
    prepared()
    np.testing.assert_array_equal(xs[0], comm.size**2)
    strided = np.arange(12.0)[::2] + comm.rank
    comm.all_reduce(strided, backend=backend, algorithm="circulant")
    np.testing.assert_array_equal(strided, comm.size * np.arange(12.0)[::2] + sum(range(comm.size)))
    comm.finalize()
    return True


@pytest.mark.timeout(90)
@pytest.mark.parametrize(("backend", "num_ranks"), [("shm", 3), *with_most_ranks(WITH_COLLECTIVES, 2)])
def test_several_in_flight(backend: str, num_ranks: int) -> None:
    assert all(hk.spawn(_in_flight, num_ranks, backend, timeout=80))


def _disagree(comm: hk.Communicator, backend: str) -> list[str]:
    comm = _start(comm, backend)
    texts = []
    for one, other in (("ring", "circulant"), ("ring", "native"), ("segmented_ring(num_segments=2)", "ring")):
        x = np.ones(100)
        try:
            comm.all_reduce(x, backend=backend, algorithm=one if comm.rank == 0 else other, timeout=10)
        except hk.CollectiveMismatch as error:
            texts.append(str(error))
        comm.all_reduce(x, backend=backend)  # the communicator still works
    comm.finalize()
    return texts


@pytest.mark.timeout(60)
@pytest.mark.parametrize("backend", ["shm", "mpi"])
def test_different_algorithms_are_a_mismatch(backend: str) -> None:
    for texts in hk.spawn(_disagree, 3, backend, timeout=50):
        assert len(texts) == 3
        assert_names(texts[0], "ring", "circulant")
        assert_names(texts[2], "segmented_ring(num_segments=2)", "ring")


class _Fixed(Policy):
    def choices(self, group: Any) -> Any:
        ranking = ("shm/circulant(num_blocks=4)", "shm")
        return {("broadcast", "moved"): [Range(1000, ("shm",)), Range((1 << 64) - 1, ranking)]}

    def explain(self, group: Any, op: str, dtypes: str, nbytes: int) -> Any:
        return "a test", []


def _by_policy(comm: hk.Communicator) -> bool:
    comm.policy = _Fixed()
    for count, expected in ((10, ""), (1000, "circulant(num_blocks=4)")):
        x = np.full(count, float(comm.rank))
        comm.broadcast(x, 1)
        assert x[0] == 1.0
        assert comm.records()[-1].algorithm == expected
    assert comm.explain("broadcast", 8000).chosen == "shm/circulant(num_blocks=4)"
    comm.broadcast(x, 0, algorithm="native")
    assert comm.records()[-1].algorithm == ""
    return True


def test_a_policy_names_algorithms() -> None:
    assert all(hk.spawn(_by_policy, 3, timeout=50))


def _own_schedule(comm: hk.Communicator) -> bool:
    """A user-defined schedule; and the same schedule over messages only."""
    n = comm.size
    ring = make_schedule("broadcast", n, 2, [[Transfers(r, r + 1, b)] for r in range(n - 1) for b in range(2)])
    x = np.arange(11.0) * (comm.rank == 2)
    comm.broadcast(x, 2, algorithm=ring)
    np.testing.assert_array_equal(x, np.arange(11.0))
    with raises(hk.InvalidSchedule, names=("rank 1", "slot 0", "block 0")):
        comm.broadcast(x, 0, algorithm=make_schedule("broadcast", n, 1, []))
    with raises(hk.InvalidArgument, names=("broadcast", "all_reduce", str(n))):
        comm.all_reduce(x, algorithm=ring)
    for algorithm in algorithms():
        if algorithm.restriction(n) is not None or algorithm.collective == "barrier":
            continue
        schedule = algorithm.schedule(n)
        given = [_values([each], 6 * n, "float64") for each in range(n)]
        x, out = given[comm.rank].copy(), None
        if algorithm.collective == "all_gather":
            out = np.zeros(6 * n * n)
        elif algorithm.collective == "reduce_scatter":
            out = np.zeros(6)
        elif algorithm.collective == "all_to_all":
            out = np.zeros(6 * n)
        sent = execute(schedule, comm, x, out, root=0)
        nbytes = x.nbytes * (n if algorithm.collective == "all_gather" else 1)
        assert sent == simulate(schedule, nbytes, Link(1e-6, 1e-9), itemsize=8).bytes_sent[comm.rank]
        total = np.sum(given, axis=0)
        expected = {
            "broadcast": given[0],
            "reduce": total if comm.rank == 0 else given[comm.rank],
            "all_reduce": total,
            "scan": np.sum(given[: comm.rank + 1], axis=0),
            "all_gather": np.concatenate(given),
            "reduce_scatter": total[6 * comm.rank : 6 * comm.rank + 6],
            "all_to_all": np.concatenate([each[6 * comm.rank : 6 * comm.rank + 6] for each in given]),
        }[algorithm.collective]
        np.testing.assert_array_equal(x if out is None else out, expected)
    return True


@pytest.mark.timeout(90)
def test_own_schedules_and_the_plain_executor() -> None:
    assert all(hk.spawn(_own_schedule, 4, timeout=80))


def test_names_of_algorithms() -> None:
    chain = find_algorithm("broadcast", "chain")
    assert parse_algorithm("broadcast", "chain") == (chain, {})
    assert parse_algorithm("broadcast", "chain(num_blocks=8)") == (chain, {"num_blocks": 8})
    assert format_algorithm("chain", {"num_blocks": 8}) == "chain(num_blocks=8)"
    _, parameters = parse_algorithm("all_reduce", "hierarchical(ranks_per_host=2, inner=circulant)")
    assert parameters == {"ranks_per_host": 2, "inner": "circulant"}
    for text in ("chain(", "chain)8(", "chain(8)", "", "chain(num_blocks=8) "):
        with pytest.raises(hk.InvalidArgument):
            parse_algorithm("broadcast", text)
