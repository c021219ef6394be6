"""UCX as one of the libraries of a job: what it carries, what it refuses, and which UCX is used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.backends import find_backends, has_collectives

from ..load import scaled
from ..naming import assert_names

pytestmark = pytest.mark.timeout(90)
TIMEOUT_S = 60
SCHEDULED = ("barrier", "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "scan")


@pytest.fixture(autouse=True)
def _no_table_of_this_user(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOCKET_TABLE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOCKET_BACKENDS", "shm")  # for spawn's own communicator, which the ranks finalize at once


def attempt(call: Callable[[], object]) -> tuple[str, str]:
    try:
        call()
    except hk.HocketError as error:
        return type(error).__name__, str(error)
    return "no error", ""


def total(comm: hk.Communicator, **how: Any) -> tuple[float, str, str]:
    """Return the result of an all_reduce of ones, the backend that carried it, and the schedule."""
    x = np.ones(100, np.float32)
    comm.all_reduce(x, **how)
    record = comm.records()[-1]
    return float(x.max()), record.backend, record.algorithm


def _alone(comm: hk.Communicator) -> dict[str, Any]:
    comm.finalize()
    comm = hk.init(backends="ucx", timeout=scaled(TIMEOUT_S))
    child, x = comm.split(0), np.zeros(4, np.float32)
    assert child is not None
    blocks = np.zeros((comm.size, 4), np.float32)
    root = comm.rank == 0
    return {
        "backends": list(comm.backends),
        "total": total(comm),
        "child": total(child.dup()),
        "chosen": {op: comm.explain(op, 1 << 20).chosen for op in SCHEDULED},
        "explained": str(comm.explain("all_reduce", 1 << 20)),
        "gather": attempt(lambda: comm.gather(blocks if root else None, x, 0)),
        "gatherv": attempt(lambda: comm.gatherv(blocks if root else None, x, [4] * comm.size, 0, backend="ucx")),
        "native": attempt(lambda: comm.all_reduce(x, algorithm="native")),
        "named": total(comm, algorithm="ring"),
        "average of halves": attempt(lambda: comm.all_reduce(np.ones(3, np.float16), "avg")),
        "afterwards": total(comm),
    }


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_alone(num_ranks: int) -> None:
    for seen in hk.spawn(_alone, num_ranks, timeout=TIMEOUT_S):
        assert seen["backends"] == ["ucx"]
        chosen = seen["chosen"]
        assert all(name.startswith("ucx/") for name in chosen.values()), chosen
        small = seen["total"]
        assert small[:2] == (num_ranks, "ucx") and small[2]
        assert seen["child"] == seen["afterwards"] == small
        assert seen["named"] == (num_ranks, "ucx", "ring")
        assert f"1. {chosen['all_reduce']} " in seen["explained"] and "(modelled)" in seen["explained"]
        for name in ("gather", "gatherv"):
            kind, message = seen[name]
            assert kind == "UnsupportedDtype"
            assert_names(message, "UCX", name)
        kind, message = seen["native"]
        assert kind == "UnsupportedDtype"
        assert_names(message, "UCX", "all_reduce")
        assert seen["average of halves"][0] == "UnsupportedDtype"


def _beside(comm: hk.Communicator) -> tuple[Any, ...]:
    comm.finalize()
    comm = hk.init(backends=["shm", "ucx"], timeout=scaled(TIMEOUT_S))
    x, out = np.arange(3.0) + comm.rank, np.zeros((comm.size, 3))
    comm.gather(out if comm.rank == 0 else None, x, 0)  # by shm
    gathered = comm.records()[-1].backend
    comm.policy = hk.Policy.fixed({"*": "ucx"})
    by_policy = total(comm)
    comm.gather(out if comm.rank == 0 else None, x, 0)
    explained = comm.explain("gather", 24)
    return gathered, by_policy[1], comm.records()[-1].backend, explained.chosen, dict(explained.refused)


def test_what_it_cannot_carry_goes_elsewhere() -> None:
    for gathered, by_policy, of_policy, explained, refused in hk.spawn(_beside, 2, timeout=TIMEOUT_S):
        assert (gathered, by_policy, of_policy, explained) == ("shm", "ucx", "shm", "shm")
        assert set(refused) == {"ucx"}
        assert_names(refused["ucx"], "UCX", "gather")


def _wrong_sizes(comm: hk.Communicator, sent: int, expected: int) -> tuple[str, str]:
    comm.finalize()
    comm = hk.init(backends="ucx", timeout=scaled(TIMEOUT_S))
    seen = "no error", ""
    x = np.arange(5.0)
    if comm.rank == 0:
        comm.send(np.ones(sent, np.uint8), 1, 4)
        comm.send(x, 1, 4)
    else:
        out = np.zeros(expected, np.uint8)
        seen = attempt(lambda: comm.recv(out, 0, 4))
        assert not out.any()
        y = np.zeros(5)
        comm.recv(y, 0, 4)
        assert (x == y).all()
    assert total(comm)[0] == 2
    return seen


@pytest.mark.parametrize(("sent", "expected"), [(16, 17), (17, 16), (0, 1), (1, 0), (3 << 20, 1 << 20), (9, 3 << 20)])
def test_message_that_does_not_fit(sent: int, expected: int) -> None:
    _, (kind, message) = hk.spawn(_wrong_sizes, 2, sent, expected, timeout=TIMEOUT_S)
    assert kind == "CollectiveMismatch"
    assert_names(message, "recv", "rank 0", "tag 4", f"{expected} bytes", f"{sent} bytes", __file__)


def _one_after_the_other(comm: hk.Communicator, jobs: list[list[str]]) -> list[tuple[float, set[str], str]]:
    """The UCX in use depends on what was loaded first."""
    comm.finalize()
    seen = []
    for backends in jobs:
        with hk.init(backends=backends, timeout=scaled(TIMEOUT_S)) as comm:
            carriers = {total(comm, backend=name) for name in comm.backends}
            x = np.ones(1 << 20)
            comm.all_reduce(x, backend="ucx")
            comm.all_reduce(x, backend="mpi" if "mpi" in comm.backends else "ucx")
            child = comm.split(comm.rank % 2)
            assert child is not None and total(child, backend="ucx")[0] == child.size
            word = comm.backends["ucx"]
            seen.append((float(x[-1]), {backend for _, backend, _ in carriers}, word))
            assert all(value == comm.size for value, _, _ in carriers)
    return seen


@pytest.mark.parametrize(
    "jobs",
    [
        [["shm", "ucx"], ["shm", "mpi", "ucx"], ["ucx"]],
        [["shm", "mpi", "ucx"], ["ucx"], ["ucx", "mpi"]],
        [["shm", "mpi", "gloo", "ucx"], ["ucx", "gloo"]],
    ],
    ids=["ucx first", "mpi first", "all of them"],
)
def test_with_mpi_in_any_order(jobs: list[list[str]]) -> None:
    for seen in hk.spawn(_one_after_the_other, 2, jobs, timeout=TIMEOUT_S):
        versions = {word for _, _, word in seen}
        assert len(versions) == 1  # one UCX in the process, from either source
        assert [value for value, _, _ in seen] == [4.0] * len(jobs)
        assert [names for _, names, _ in seen] == [set(backends) for backends in jobs]


def _both_at_once(comm: hk.Communicator) -> tuple[float, str]:
    comm.finalize()
    comm = hk.init(backends=["mpi", "ucx", "mpi+ucx"], timeout=scaled(TIMEOUT_S))
    x = np.ones(100_000)
    comm.all_reduce(x, backend="mpi+ucx")
    return float(x.sum()), comm.records()[-1].algorithm


def test_parts_of_one_operation() -> None:
    """A schedule carries them if one of the two has no collectives."""
    for result, algorithm in hk.spawn(_both_at_once, 2, timeout=TIMEOUT_S):
        assert result == 200_000 and algorithm


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ucxx", None)
    obstacle = find_backends()["ucx"].find_obstacle()
    assert obstacle is not None and "pip install 'hocket[ucx]'" in obstacle and "ucxx" in obstacle


def test_it_is_optional_and_has_no_collectives() -> None:
    assert find_backends()["ucx"].is_optional
    assert not has_collectives("ucx") and not has_collectives("mpi+ucx")
    assert has_collectives("shm") and has_collectives("mpi+gloo")
