"""The libraries of a job: those requested, those that are usable, and the same on all ranks."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.backends import declarations
from hocket.comm.unavailable import NOT_ASKED_FOR

from ..load import scaled
from ..naming import Given, assert_names

pytestmark = pytest.mark.timeout(90)
TIMEOUT_S = 60
_BY_DEFAULT = {name for name, each in declarations().items() if not each.is_optional}
_NEED_TORCH = {name for name in _BY_DEFAULT if "torch" in declarations()[name].requires.modules}


@pytest.fixture(autouse=True)
def _no_table_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOCKET_TABLE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def attempt(call: Callable[[], object]) -> tuple[str, str]:
    try:
        call()
    except hk.HocketError as error:
        return type(error).__name__, str(error)
    return "no error", ""


def total(comm: hk.Communicator, **how: Any) -> tuple[float, str]:
    """Return the result of an all_reduce of ones, and the backend that carried it."""
    x = np.ones(100, np.float32)
    comm.all_reduce(x, **how)
    return float(x.max()), comm.records()[-1].backend


def _one_library(comm: hk.Communicator, name: str, backends: Any) -> dict[str, Any]:
    comm.finalize()
    if name == "gloo":
        importlib.import_module("torch").set_num_threads(1)
    comm = hk.init(backends=backends, timeout=scaled(TIMEOUT_S))
    child = comm.split(0)
    assert child is not None
    seen = {
        "backends": list(comm.backends),
        "left out": comm.backends.left_out,
        "total": total(comm),
        "by name": total(comm, backend=name),
        "child": (list(child.backends), total(child)),
        "explained": (comm.explain("broadcast", 64).chosen, [each.backend for each in comm.explain("send").candidates]),
        "shm": attempt(lambda: comm.barrier(backend="shm")),
        "shm message": attempt(lambda: comm.isend(np.ones(1), 1 - comm.rank, backend="shm")),
        "policy": attempt(lambda: setattr(comm, "policy", hk.Policy.fixed({"*": "shm"}))),
    }
    return {**seen, "afterwards": total(comm)}


@pytest.mark.parametrize(("name", "other"), [("mpi", "gloo"), ("gloo", "mpi")])
@pytest.mark.parametrize("as_list", [False, True], ids=["name", "list"])
def test_one_library_alone(name: str, other: str, as_list: bool) -> None:
    for seen in hk.spawn(_one_library, 2, name, [name] if as_list else name, timeout=TIMEOUT_S):
        assert seen["backends"] == [name]
        assert seen["left out"][other] == NOT_ASKED_FOR
        assert seen["total"] == seen["by name"] == seen["afterwards"] == (2.0, name)
        assert seen["child"] == ([name], (2.0, name))
        assert seen["explained"] == (name, [name])
        for call in ("shm", "shm message"):
            kind, message = seen[call]
            assert kind == "BackendUnavailable"
            assert_names(message, "'shm'", f"'{name}'")
        assert seen["policy"][0] == "InvalidArgument"
        assert_names(seen["policy"][1], "'shm'", "*", name)


def _what_there_is(comm: hk.Communicator) -> tuple[list[str], dict[str, str], tuple[str, str], bool]:
    refusal = attempt(lambda: comm.barrier(backend="gloo"))
    comm.barrier()
    return list(comm.backends), comm.backends.left_out, refusal, "torch" in sys.modules


def test_gloo_is_left_out_without_torch() -> None:
    for backends, left_out, (kind, message), has_torch in hk.spawn(_what_there_is, 2, timeout=TIMEOUT_S):
        assert not has_torch or {"gloo"} != _NEED_TORCH
        assert (backends[0], set(backends)) == ("shm", _BY_DEFAULT - {"gloo"})
        assert set(left_out) == {"gloo"}
        assert_names(left_out["gloo"], "torch", "hocket.init()")
        assert kind == "BackendUnavailable"
        assert_names(message, "'gloo'", "'shm'", "'mpi'", "torch", "hocket.init()")


def test_one_rank_alone_starts_no_library() -> None:
    ((backends, left_out, _, _),) = hk.spawn(_what_there_is, 1, timeout=TIMEOUT_S)
    assert backends == ["shm"]
    assert set(left_out) == _BY_DEFAULT - {"shm"}
    assert left_out["mpi"] == "one rank alone needs no library"


def _all_that_can_be_had(comm: hk.Communicator) -> tuple[list[str], dict[str, str], set[str]]:
    comm.finalize()
    importlib.import_module("torch").set_num_threads(1)
    comm = hk.init(timeout=scaled(TIMEOUT_S))
    return list(comm.backends), comm.backends.left_out, {total(comm, backend=name)[1] for name in comm.backends}


def test_gloo_is_there_with_torch() -> None:
    for backends, left_out, used in hk.spawn(_all_that_can_be_had, 2, timeout=TIMEOUT_S):
        assert (set(backends), left_out, used) == (_BY_DEFAULT, {}, _BY_DEFAULT)


def _again_and_again(comm: hk.Communicator, backends: list[list[str] | None]) -> list[tuple[list[str], set[Any]]]:
    seen = []
    for names in backends:
        comm.finalize()
        comm = hk.init(backends=names, timeout=scaled(TIMEOUT_S))
        child = comm.dup()
        results = {total(each, backend=name) for each in (comm, child) for name in comm.backends}
        seen.append((list(comm.backends), results))
    return seen


def test_init_again() -> None:
    requests: list[list[str] | None] = [["mpi"], ["mpi"], ["shm"], None, ["shm", "mpi"]]
    for seen in hk.spawn(_again_and_again, 2, requests, timeout=TIMEOUT_S):
        for names, (found, results) in zip(requests, seen, strict=True):
            if names is None:
                assert found[0] == "shm" and _BY_DEFAULT - {"gloo"} <= set(found)
                assert set(found) <= _BY_DEFAULT - ({"gloo"} if {"gloo"} == _NEED_TORCH else set())
            else:
                assert found == names
            assert results == {(2.0, name) for name in found}


def _averages(comm: hk.Communicator) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    calls: dict[str, Callable[..., object]] = {
        "all_reduce": lambda x, **how: comm.all_reduce(x, "avg", **how),
        "reduce": lambda x, **how: comm.reduce(x, 0, "avg", **how),
        "reduce_scatter": lambda x, **how: comm.reduce_scatter(x[comm.rank * 4 : comm.rank * 4 + 4], x, "avg", **how),
    }
    for op, call in calls.items():
        seen[op] = attempt(lambda call=call: call(np.ones(8, np.float16), backend="mpi"))
    x = np.full(8, comm.rank, np.float16)
    comm.policy = hk.Policy.fixed({"*": "mpi"})
    comm.all_reduce(x, "avg")
    seen["result"] = x.tolist(), comm.records()[-1].backend
    explained = comm.explain("all_reduce", 16, "float16", "avg")
    seen["explained"] = explained.chosen, list(explained.refused), explained.reason
    seen["sum"] = comm.explain("all_reduce", 16, "float16", "sum").chosen
    comm.all_reduce(np.ones(8, np.float16), "sum")
    seen["record of sum"] = comm.records()[-1].backend
    return seen


def test_what_a_library_would_round_goes_to_shm() -> None:
    for seen in hk.spawn(_averages, 2, timeout=TIMEOUT_S):
        for op in ("all_reduce", "reduce", "reduce_scatter"):
            kind, message = seen[op]
            assert kind == "UnsupportedDtype"
            assert_names(message, "mpi", f"{op}(avg)", "float16", "MPI", "16")
        assert seen["result"] == ([0.5] * 8, "shm")
        assert seen["explained"][:2] == ("shm", ["mpi"])
        assert "mpi cannot carry it" in seen["explained"][2]
        assert seen["sum"] == seen["record of sum"] == "mpi"


def _averages_without_shm(comm: hk.Communicator) -> list[tuple[str, str]]:
    comm.finalize()
    comm = hk.init(backends="mpi", timeout=scaled(TIMEOUT_S))
    failures = [
        attempt(lambda: comm.all_reduce(np.ones(8, np.float16), "avg")),
        attempt(lambda: comm.explain("all_reduce", 16, "float16", "avg")),
    ]
    assert total(comm) == (2.0, "mpi")
    return failures


def test_what_no_library_can_carry() -> None:
    for failures in hk.spawn(_averages_without_shm, 2, timeout=TIMEOUT_S):
        for kind, message in failures:
            assert kind == "UnsupportedDtype"
            assert_names(message, "world", "all_reduce(avg)", "float16", "mpi", "MPI", "16")


# Each rank of a job that hocket.spawn did not start writes a file with the result of every choice of backends.
_SCRIPT = """
import importlib, json, os, sys
import numpy as np
rank = int(os.environ["RANK"])
{before}
import hocket as hk
results = []
for backends in (["shm", "mpi"], "mpi", None, ["shm"]):
    try:
        comm = hk.init(backends=backends, timeout={timeout_s})
    except Exception as error:
        results.append([type(error).__name__, str(error)])
        continue
    x = np.ones(10)
    comm.all_reduce(x)
    results.append([list(comm.backends), comm.backends.left_out, x.max()])
    comm.finalize()
with open(f"result-{{rank}}.json", "w") as file:
    json.dump(results, file)
"""


def run_ranks(folder: Path, before: str, timeout_s: float = 30) -> list[list[Any]]:
    """Run a job of two ranks whose script starts with `before`; return each rank's results."""
    return run_script(folder, _SCRIPT.format(before=before, timeout_s=timeout_s))


def run_script(folder: Path, script: str) -> list[list[Any]]:
    """Run a script on two ranks; return what each has written."""
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-c", "from hocket.cli._command import main; main()", "run", "-n", "2", "script.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2)]


def check_left_out(results: list[list[Any]], words: list[str]) -> None:
    """Assert that mpi is refused if it was requested, left out if not, and that all ranks know the reason."""
    assert results[0] == results[1]
    *named, automatic, alone = results[0]
    for kind, message in named:
        assert kind == "BackendUnavailable"
        assert_names(message, "'mpi'", *words)
    backends, left_out, result = automatic
    assert (set(backends), result) == (_BY_DEFAULT - {"mpi", "gloo"}, 2.0)
    assert_names(left_out["mpi"], *words)
    assert (alone[0], alone[2]) == (["shm"], 2.0)


# MPI starts a rank that does not know the launcher as a job of one rank.
ALONE = "os.environ.pop('PMI_FD')\n"


def test_mpi_that_was_started_before(tmp_path: Path) -> None:
    results = run_ranks(tmp_path, ALONE + "from mpi4py import MPI\nassert MPI.COMM_WORLD.size == 1")
    check_left_out(results, ["BootstrapMismatch", "MPI", "rank 0", "1", "2", "hocket.init()"])


def test_mpi_that_one_rank_has_not(tmp_path: Path) -> None:
    results = run_ranks(tmp_path, "if rank == 1: sys.modules['mpi4py'] = None")
    check_left_out(results, ["rank 1", "mpi4py"])


@pytest.mark.parametrize("rank", [0, 1])
def test_mpi_that_fails_on_one_rank(tmp_path: Path, rank: int) -> None:
    """By raising in `start`, before any message between the ranks."""
    before = f"""
from hocket.backends.mpi import MpiBackend
from hocket.errors import BackendUnavailable
def start(cls, job):
    if job.rank == {rank}:
        raise BackendUnavailable("the cable is cut")
    return object.__new__(cls)
MpiBackend.start = classmethod(start)
"""
    check_left_out(run_ranks(tmp_path, before), [f"rank {rank}", "BackendUnavailable", Given("the cable is cut")])


@pytest.mark.parametrize("rank", [0, 1])
def test_mpi_that_was_started_before_on_one_rank(tmp_path: Path, rank: int) -> None:
    results = run_ranks(tmp_path, ALONE + f"if rank == {rank}: from mpi4py import MPI", timeout_s=3)
    check_left_out(results, ["MPI", f"[{rank}]", "hocket.init()"])


def test_mpi_that_one_rank_cannot_load(tmp_path: Path) -> None:
    before = "if rank == 1: os.environ['MPI4PY_LIBMPI'] = '/no/such/libmpi.so'"
    check_left_out(
        run_ranks(tmp_path, before, timeout_s=3),
        ["rank 1", "RuntimeError", "/no/such/libmpi.so"],
    )


_START_TWICE = """
import json, os
import hocket as hk
from hocket.backends import _mpi

call_driving, rank = _mpi.call_driving, int(os.environ["RANK"])

def call_late(what, call, timeout):
    result = call_driving(what, call, timeout)
    if what == "MPI_Init_thread" and rank in {late}:
        raise hk.CommTimeout(what)
    return result

_mpi.call_driving = call_late
results = []
for backends in (["shm", "mpi"], ["shm", "mpi"], None):
    try:
        with hk.init(backends=backends, timeout={timeout_s}) as comm:
            results.append(["no error", comm.backends.left_out["mpi"]])
    except hk.HocketError as error:
        results.append([type(error).__name__, str(error)])
with open(f"result-{{rank}}.json", "w") as file:
    json.dump(results, file)
"""


@pytest.mark.parametrize("late", [[0, 1], [1]])
def test_mpi_that_took_too_long_to_start_is_not_started_again(tmp_path: Path, late: list[int]) -> None:
    """A second MPI_Init_thread would end the process."""
    for first, second, automatic in run_script(tmp_path, _START_TWICE.format(late=late, timeout_s=scaled(3))):
        assert first[0] in ("CommTimeout", "BackendUnavailable")
        assert (second[0], automatic[0]) == ("BackendUnavailable", "no error")
        assert_names(second[1], "'mpi'", "MPI_Init_thread", str(late))
        assert_names(automatic[1], "MPI_Init_thread", str(late))
