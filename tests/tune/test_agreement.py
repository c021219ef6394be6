"""Ranks choose alike, or learn why they would not; what is chosen is what records show."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.tune import ModelPolicy, Row, Table, TablePolicy, save_table, this_machine

from ..load import scaled
from ..naming import Given, assert_names
from .tables import row

pytestmark = pytest.mark.timeout(90)
TIMEOUT_S = 60

SHM_FIRST, MPI_FIRST = (1e-6, 2e-6), (2e-6, 1e-6)
TIMES = {
    "barrier": {0: MPI_FIRST},
    "all_reduce": {16: SHM_FIRST, 4096: MPI_FIRST, 65_536: SHM_FIRST},
    "reduce": {16: MPI_FIRST, 4096: SHM_FIRST},
    "broadcast": {16: SHM_FIRST, 65_536: MPI_FIRST},
    "all_gather": {16: MPI_FIRST},
    "reduce_scatter": {16: SHM_FIRST, 256: MPI_FIRST},
    "all_to_all": {4096: MPI_FIRST, 65_536: SHM_FIRST},
    "send": {65_536: MPI_FIRST},
    "recv": {65_536: MPI_FIRST},
}


def rows() -> tuple[Row, ...]:
    return tuple(
        row(op, backend, nbytes, seconds)
        for op, sizes in TIMES.items()
        for nbytes, times in sizes.items()
        for backend, seconds in zip(("shm", "mpi"), times, strict=True)
    )


def start_with(comm: hk.Communicator, path: Path | None, **options: Any) -> hk.Communicator:
    """Leave the world and join it again with another table."""
    comm.finalize()
    if path is not None:
        os.environ["HOCKET_TABLE"] = str(path)
    else:
        os.environ.pop("HOCKET_TABLE", None)
    return hk.init(timeout=scaled(TIMEOUT_S), **options)


Write = Callable[[Path, int, dict[str, str]], object]


def fail_then_start(comm: hk.Communicator, folder: Path, write: Write) -> dict[str, Any]:
    """Join with the table that `write` makes for this rank, which must fail; then work without one."""
    path = folder / f"table-{comm.rank}.json"
    written = write(path, comm.rank, comm.backends)
    try:
        start_with(comm, path)
    except hk.HocketError as error:
        outcome = {"written": written, "error": type(error).__name__, "message": str(error)}
    else:
        raise AssertionError("no error")
    comm = start_with(comm, None)  # nothing of it is left behind
    x = np.ones(3)
    for backend in ("shm", "mpi"):
        comm.all_reduce(x, backend=backend)
    return {**outcome, "total": x.tolist()}


def write_own(path: Path, rank: int, backends: dict[str, str]) -> str:
    table = Table(this_machine(backends), rows()[rank:])
    save_table(table, path)
    return table.hash


def write_malformed(path: Path, rank: int, backends: dict[str, str]) -> None:
    save_table(Table(this_machine(backends), rows()), path)
    if rank == 1:
        path.write_text(path.read_text().replace('"all_gather"', '"all_scatter"'))


def test_different_tables(tmp_path: Path) -> None:
    outcomes = hk.spawn(fail_then_start, 2, tmp_path, write_own, timeout=TIMEOUT_S)
    hashes = [each["written"] for each in outcomes]
    assert hashes[0] != hashes[1]
    for outcome in outcomes:
        assert outcome["error"] == "TableMismatch"
        assert_names(outcome["message"], f"rank 0: {hashes[0]}", f"rank 1: {hashes[1]}")
        assert outcome["total"] == [4.0] * 3


def test_table_that_is_foreign_on_one_rank(tmp_path: Path) -> None:
    def write(path: Path, rank: int, backends: dict[str, str]) -> None:
        save_table(Table(this_machine(backends), rows()), path)
        if rank == 1:
            path.write_text(path.read_text().replace('"num_cpus": ', '"num_cpus": 1'))

    for outcome in hk.spawn(fail_then_start, 2, tmp_path, write, timeout=TIMEOUT_S):
        assert outcome["error"] == "TableMismatch"
        assert_names(outcome["message"], "rank 0", "rank 1", f"1{this_machine({}).num_cpus}")


def test_malformed_table_on_one_rank(tmp_path: Path) -> None:
    outcomes = hk.spawn(fail_then_start, 2, tmp_path, write_malformed, timeout=TIMEOUT_S)
    place = str(tmp_path / "table-1.json")
    assert [each["error"] for each in outcomes] == ["TableError"] * 2
    assert outcomes[0]["message"] == outcomes[1]["message"]
    assert_names(outcomes[0]["message"], place, "op", "'all_scatter'")
    assert [each["total"] for each in outcomes] == [[4.0] * 3] * 2


def _foreign(comm: hk.Communicator, path: Path) -> tuple[list[str], str, str]:
    if comm.rank == 0:
        machine = this_machine({**comm.backends, "mpi": "MPICH of yore"})
        save_table(Table(machine, rows()), path)
    comm.barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        comm = start_with(comm, path)
    texts = [str(each.message) for each in caught if "hocket" in str(each.message)]
    return texts, type(comm.policy).__name__, comm.explain("all_to_all", 4096).reason


def test_foreign_table_is_one_warning(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    (texts, *facts), (no_texts, *other_facts) = hk.spawn(_foreign, 2, path, timeout=TIMEOUT_S)
    assert len(texts) == 1 and no_texts == []
    assert_names(texts[0], str(path), "mpi", Given("'MPICH of yore'"))
    assert facts == other_facts and facts[0] == ModelPolicy.__name__
    assert "MPICH of yore" in facts[1]


def issue(comm: hk.Communicator, op: str, nbytes: int, **how: Any) -> None:
    """Issue one operation of `Record.nbytes`; send and recv at once, around the ring."""
    x, blocks = np.ones(nbytes // 4, np.float32), np.ones(nbytes // 4 * comm.size, np.float32)
    calls: dict[str, Callable[[], object]] = {
        "barrier": lambda: comm.barrier(**how),
        "all_reduce": lambda: comm.all_reduce(x, **how),
        "reduce": lambda: comm.reduce(x, 1, **how),
        "broadcast": lambda: comm.broadcast(x, 1, **how),
        "all_gather": lambda: comm.all_gather(blocks, x, **how),
        "reduce_scatter": lambda: comm.reduce_scatter(x, blocks, **how),
        "all_to_all": lambda: comm.all_to_all(blocks.copy(), blocks, **how),
    }
    if op in calls:
        calls[op]()
        return
    received = np.empty_like(x)
    work = comm.irecv(received, (comm.rank - 1) % comm.size, **how)
    comm.send(x, (comm.rank + 1) % comm.size, **how)
    work.wait()


def used_by(comm: hk.Communicator, op: str, nbytes: int, **how: Any) -> str:
    issue(comm, op, nbytes, **how)
    return next(record for record in reversed(comm.records()) if record.op == op).backend


Seen = dict[tuple[str, int], tuple[str, str]]


def _compare(comm: hk.Communicator) -> Seen:
    return {
        (op, nbytes): (comm.explain(op, nbytes).chosen, used_by(comm, op, nbytes))
        for op in TIMES
        for nbytes in ((0,) if op == "barrier" else (4, 16, 252, 256, 260, 4096, 16_384, 16_388, 65_536, 1 << 20))
    }


def _use_table(comm: hk.Communicator, path: Path) -> tuple[list[Seen], list[bool], dict[str, str]]:
    if comm.rank == 0:
        save_table(Table(this_machine(comm.backends), rows()), path)
    comm.barrier()
    comm = start_with(comm, path)
    half = comm.split(0)
    assert half is not None
    communicators = [comm, half, comm.dup(), half.group([1, 0])]
    inherited = [isinstance(each.policy, TablePolicy) and each.policy is comm.policy for each in communicators]
    named = {f"{op} {backend}": used_by(comm, op, 4096, backend=backend) for op in TIMES for backend in ("shm", "mpi")}
    return [_compare(each) for each in communicators], inherited, named


def test_records_show_what_explanations_say(tmp_path: Path) -> None:
    results = hk.spawn(_use_table, 2, tmp_path / "table.json", timeout=TIMEOUT_S)
    assert results[0] == results[1]
    tables, inherited, named = results[0]
    assert inherited == [True] * 4
    assert named == {f"{op} {backend}": backend for op in TIMES for backend in ("shm", "mpi")}
    for seen in tables:
        assert all(chosen == used for chosen, used in seen.values()), seen
        for op, sizes in TIMES.items():
            for nbytes, (shm_s, mpi_s) in sizes.items():
                assert seen[op, nbytes][1] == ("shm" if shm_s < mpi_s else "mpi"), (op, nbytes)
        # borders: at the geometric means
        assert [seen["all_reduce", nbytes][1] for nbytes in (252, 256, 260, 16_384, 16_388)] == [
            "shm", "shm", "mpi", "mpi", "shm",
        ]  # fmt: skip
        assert len({seen[op, nbytes][1] for op in ("send", "recv") for nbytes in (4, 4096, 1 << 20)}) == 1


def _set_policies(comm: hk.Communicator) -> dict[str, Any]:
    comm = start_with(comm, None, backends=["shm", "mpi"])
    seen: dict[str, Any] = {"model": (used_by(comm, "all_to_all", 64), used_by(comm, "broadcast", 64))}
    comm.policy = policy = hk.Policy.fixed({"all_to_all": "mpi", "*": "shm"})
    seen["fixed"] = used_by(comm, "all_to_all", 64), used_by(comm, "broadcast", 64)
    child = comm.split(0, -comm.rank)
    assert child is not None
    seen["child"] = used_by(child, "all_to_all", 64), used_by(child, "broadcast", 64), child.policy is comm.policy
    for name, wrong in (("unknown", {"*": "nccl"}), ("one of two", {"*": "mpi", "broadcast": "gloo"})):
        try:
            comm.policy = hk.Policy.fixed(wrong)
        except hk.InvalidArgument as error:
            seen[name] = str(error)
        seen[f"after {name}"] = used_by(comm, "all_to_all", 64), used_by(comm, "broadcast", 64), comm.policy is policy
    comm.policy = hk.Policy.fixed({"*": "mpi"})
    seen["changed"] = used_by(comm, "all_to_all", 64), used_by(comm, "broadcast", 64)
    seen["child afterwards"] = used_by(child, "all_to_all", 64), used_by(child, "broadcast", 64)
    seen["explained"] = comm.explain("broadcast", 64).chosen, comm.explain("broadcast", 64).reason
    comm = start_with(comm, None, backends=["shm", "mpi"], policy=hk.Policy.fixed({"barrier": "mpi"}))
    seen["at init"] = used_by(comm, "barrier", 0), used_by(comm, "broadcast", 64)
    return seen


def test_policies_of_a_program() -> None:
    for seen in hk.spawn(_set_policies, 2, timeout=TIMEOUT_S):
        for name, *named in (("unknown", "'nccl'", "*"), ("one of two", "'gloo'", "broadcast")):
            assert_names(seen.pop(name), *named, "shm", "mpi")
        assert seen == {
            "model": ("shm", "shm"),
            "fixed": ("mpi", "shm"),
            "child": ("mpi", "shm", True),
            "after unknown": ("mpi", "shm", True),
            "after one of two": ("mpi", "shm", True),
            "changed": ("mpi", "mpi"),
            "child afterwards": ("mpi", "shm"),
            "explained": ("mpi", "the policy names it"),
            "at init": ("mpi", "shm"),
        }
