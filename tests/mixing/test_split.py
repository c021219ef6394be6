"""Operations that two libraries carry together, each a part."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket import _native
from hocket.comm.policy import DefaultPolicy, Group
from hocket.tune.policy import SPLITTABLE, TablePolicy
from hocket.tune.sweep import Sweep, measure_table

from ..load import scaled
from ..naming import raises

BOTH = "mpi+gloo"


def _start(comm: hk.Communicator) -> hk.Communicator:
    comm.finalize()
    return hk.init(backends=["shm", "mpi", "gloo", BOTH], timeout=scaled(30))


class _Halves(DefaultPolicy):
    """A policy with its own shares."""

    def __init__(self, share: float) -> None:
        self._share = share

    def shares(self, group: Group, backend: str) -> Any:
        ranges = [(1 << 12, self._share), (1 << 60, 1 - self._share)]
        return dict.fromkeys(SPLITTABLE, ranges) if "+" in backend else {}


def _results(comm: hk.Communicator) -> set[str]:
    comm = _start(comm)
    size = comm.size
    for share in (0.5, 0.0, 1.0, 0.3):
        comm.policy = _Halves(share)
        for dtype in ("float32", "float16", "int64", "complex128", "bool"):
            for count in (0, 1, 7, 33, 5000, 100_003):
                random = [np.random.default_rng([rank, count]) for rank in range(size)]
                given = [each.integers(0, 5, count).astype(dtype) for each in random]
                largest = dtype == "bool"
                expected = np.logical_or.reduce(given) if largest else np.sum(given, axis=0)
                how = {"op": "max" if largest else "sum", "backend": BOTH}
                x = given[comm.rank].copy()
                comm.all_reduce(x, **how)
                np.testing.assert_array_equal(x, expected)
                for root in {0, size - 1}:
                    x = given[comm.rank].copy()
                    comm.broadcast(x, root, backend=BOTH)
                    np.testing.assert_array_equal(x, given[root])
                    comm.reduce(x, root, op="max" if dtype != "complex128" else "sum", backend=BOTH)
        strided = np.zeros((1000, 2), np.float32)
        strided[:, 1] = comm.rank
        comm.all_reduce(strided[:, 1], backend=BOTH)
        assert (strided[:, 1] == sum(range(size))).all() and not strided[:, 0].any()
        works = [comm.all_reduce(np.full(n, 1.0), backend=BOTH, async_op=True) for n in (1, 9999, 3, 50_000)]
        for work in reversed(works):
            work.wait()
        x = np.ones(30_000)
        comm.all_reduce(x, backend=BOTH, algorithm="ring")  # each of its messages is sent in two parts
        assert (x == size).all()
    queued = np.full((6, 100_000), 1.0, np.float32)
    works = [comm.all_reduce(each, backend=BOTH, async_op=True) for each in queued]
    time.sleep(0.1 * comm.rank)  # the number of posted operations differs between the ranks
    comm.policy = _Halves(0.9)
    for work in works:
        work.wait()
    assert (queued == size).all()
    with raises(hk.InvalidArgument, names=("all_reduce", "0", "1", "1.500000")):
        comm.policy = _Halves(1.5)
    comm.policy = DefaultPolicy()
    half = comm.split(comm.rank % 2)
    assert half is not None
    y = np.full(2000, 1.0)
    half.all_reduce(y, backend=BOTH)
    assert (y == half.size).all()
    return {record.backend for record in comm.records() if record.op == "all_reduce"}


@pytest.mark.timeout(100)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_results(num_ranks: int) -> None:
    assert hk.spawn(_results, num_ranks, timeout=90) == [{BOTH}] * num_ranks


def _parts(comm: hk.Communicator) -> None:
    """The recorder has what each library carries of an operation."""
    comm = _start(comm)
    comm.policy = _Halves(0.25)
    for count in (100, 4000, 100_000):
        comm.all_reduce(np.ones(count), backend=BOTH)
    comm.broadcast(np.ones(3000), 1, backend=BOTH)
    snapshot = hk.trace.find_recorders(os.getpid())[0].read()
    # This process may have had communicators before. Shares are 0.25 up to 4 KiB, else 0.75; the first part ends with a
    # cache line.
    world = max(each.id for each in snapshot.definitions if each.kind == "backend" and each.text == BOTH)
    expected = {(-1, part, size) for number in ((192, 608), (24_000, 8000), (600_000, 200_000))
                for part, size in enumerate(number)}  # fmt: skip
    expected |= {(1, 0, 17_984), (1, 1, 6016)}  # with the root
    kind = _native.TRANSFER_NAMES.index("part")
    events = snapshot.rings["transfers"].events
    parts = events[(events["kind"] == kind) & (events["comm"] == world)]  # some may be left out
    assert {(int(each["peer"]), int(each["aux"]), int(each["nbytes"])) for each in parts} <= expected
    assert set(parts["state"]) <= {hk.trace.EVENT_STATES.index("completed")} and (parts["t_end"] > 0).all()
    totals = snapshot.histograms
    totals = totals[(totals["layer"] == 1) & (totals["kind"] == kind) & (totals["comm"] == world)]
    assert int(totals["count"].sum()) == len(expected)
    for peer in (-1, 1):
        nbytes = sum(size for other, _, size in expected if other == peer)
        assert int(totals["nbytes"][totals["peer"] == peer].sum()) == nbytes


@pytest.mark.timeout(60)
def test_parts_are_recorded() -> None:
    hk.spawn(_parts, 2, timeout=50)


def _errors(comm: hk.Communicator) -> tuple[str, str, str]:
    comm = _start(comm)
    with raises(hk.UnsupportedDtype, names="all_gather"):
        comm.all_gather(np.zeros((comm.size, 2)), np.zeros(2), backend=BOTH)
    with raises(hk.UnsupportedDtype, names=("mpi", "all_reduce(avg)", "float16")):
        comm.all_reduce(np.zeros(2, np.float16), "avg", backend=BOTH)
    with pytest.raises(hk.CollectiveMismatch):
        comm.all_reduce(np.zeros(2 + comm.rank), backend=BOTH)
    x = np.ones(5000)
    comm.all_reduce(x, backend=BOTH)  # the communicator still works
    assert (x == comm.size).all()
    late = np.ones(5000)
    if comm.rank == 0:
        with pytest.raises(hk.CommTimeout):
            comm.all_reduce(late, backend=BOTH, timeout=0.5)
    else:
        with pytest.raises((hk.Aborted, hk.PeerFailure)):
            comm.recv(late, 0, timeout=20)
    return comm.backends[BOTH], comm.explain("all_gather", 1 << 20).chosen, comm.explain("all_reduce", 64).chosen


@pytest.mark.timeout(60)
def test_errors() -> None:
    for word, gathers, reduces in hk.spawn(_errors, 2, timeout=50):
        assert "both" in word
        assert BOTH not in (gathers, reduces)


def _reduce_for_ever(comm: hk.Communicator, x: np.ndarray) -> None:
    while True:
        comm.all_reduce(x, backend=BOTH)


def _die(comm: hk.Communicator, folder: str) -> None:
    os.environ["HOCKET_RECORD_DIR"] = folder
    comm = _start(comm)
    x = np.ones(1 << 20)
    comm.all_reduce(x, backend=BOTH)
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with raises(hk.PeerFailure, names="rank 1", ranks=(1,)):
        _reduce_for_ever(comm, x)
    Path(folder, "reported").touch()
    os._exit(0)


@pytest.mark.timeout(60)
def test_a_rank_that_dies(tmp_path: Path) -> None:
    with pytest.raises((hk.RemoteError, hk.PeerFailure)):
        hk.spawn(_die, 2, str(tmp_path), timeout=50)
    assert (tmp_path / "reported").exists()


def _two_pairs(comm: hk.Communicator) -> float:
    comm.finalize()
    comm = hk.init(backends=["shm", "mpi", "gloo", BOTH, "gloo+mpi"], timeout=scaled(30))
    x = np.ones(1000)
    comm.all_reduce(x, backend=BOTH)
    comm.all_reduce(x, backend="gloo+mpi")
    dropped = comm.dup()
    dropped.finalize()
    dropped.policy = _Halves(0.5)  # has no effect any longer
    return float(x[0])


@pytest.mark.timeout(60)
def test_two_pairs_of_the_same_libraries() -> None:
    assert hk.spawn(_two_pairs, 2, timeout=50) == [4.0, 4.0]


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("backends", "names"),
    [
        (["mpi+mpi"], "'mpi+mpi'"),
        (["mpi+gloo+mpi"], "'mpi+gloo+mpi'"),
        (["mpi+nothing"], ("'mpi+nothing'", "shm", "gloo", "mpi")),
        (["shm+mpi"], ("'shm+mpi'", "shm", "gloo", "mpi")),
    ],
)
def test_wrong_names(backends: list[str], names: str | tuple[str, ...]) -> None:
    with raises(hk.BackendUnavailable, names=names):
        hk.init(backends=backends)


def _measure(comm: hk.Communicator) -> tuple[TablePolicy, list[tuple[str, float]]]:
    comm = _start(comm)
    sweep = Sweep(("all_reduce", "all_gather"), (4096, 1 << 18), (), rounds=6, min_sample_s=0.0005, schedules=False)
    policy = TablePolicy(measure_table(comm, sweep))
    comm.policy = policy
    x = np.ones(1 << 16, np.float32)
    comm.all_reduce(x)  # by the fastest backend
    assert (x == comm.size).all()
    chosen = comm.explain("all_reduce", 1 << 18)
    return policy, [(each.carrier, each.seconds or 0.0) for each in chosen.candidates]


@pytest.mark.timeout(90)
def test_tuner_measures_both_at_once() -> None:
    (policy, candidates), _ = hk.spawn(_measure, 2, timeout=80)
    rows = [row for row in policy.table.rows if row.backend == BOTH]
    assert {(row.op, row.nbytes) for row in rows} == {("all_reduce", 4096), ("all_reduce", 1 << 18)}
    assert BOTH in {carrier for carrier, _ in candidates}
    shares = policy.shares(Group(2, ["shm", "mpi", "gloo", BOTH]), BOTH)
    assert set(shares) == {"all_reduce"}
    assert all(0 <= share <= 1 for _, share in shares["all_reduce"]) and len(shares["all_reduce"]) == 2
