"""The flight record, read by torch's own analyser."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.trace import GroupRecords, Record, write_flight_record

pytestmark = pytest.mark.timeout(120)
ANALYSER = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]


def _analyse(folder: Path, *options: str) -> str:
    done = subprocess.run([*ANALYSER, str(folder), *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _database(folder: Path, tmp_path: Path) -> Any:
    _analyse(folder, "--output", str(tmp_path / "database"))
    with open(tmp_path / "database", "rb") as file:
        return pickle.load(file)[1]


def _all_kinds(comm: hk.Communicator, folder: str) -> None:
    n, x = comm.size, np.ones(6, np.float32)
    many = np.ones(6 * n, np.float32)
    comm.barrier()
    comm.all_reduce(x)
    comm.reduce(x, 0)
    comm.scan(x)
    comm.broadcast(x, 1)
    comm.all_gather(many, x)
    comm.reduce_scatter(x, many)
    comm.all_to_all(np.empty_like(many), many)
    comm.gather(many if comm.rank == 0 else None, x, 0)
    comm.scatter(x, many if comm.rank == 0 else None, 0)
    counts = [1 + rank for rank in range(n)]
    comm.all_gatherv(np.empty(sum(counts)), np.ones(counts[comm.rank]), counts)
    comm.all_gather_object({"rank": comm.rank})
    pair = comm.split(comm.rank % 2)
    assert pair is not None
    pair.all_reduce(x)
    right, left = (comm.rank + 1) % n, (comm.rank - 1) % n
    for _ in range(3):
        receive = comm.irecv(np.empty(6, np.float32), left)
        comm.send(x, right)
        receive.wait()
    comm.dump_flight_record(folder)


@pytest.mark.parametrize("size", [2, 3])
def test_torchs_analyser_matches_everything(tmp_path: Path, size: int) -> None:
    hk.spawn(_all_kinds, size, str(tmp_path / "flight"), timeout=60)
    assert sorted(os.listdir(tmp_path)) == ["flight"]
    database = _database(tmp_path / "flight", tmp_path)
    assert all(each.pass_check for each in database.collectives)
    names = [each.collective_name for each in database.collectives if each.pass_check]
    # one more all_gather each for the split and the object's sizes; each message is sent and received
    assert {name.split(":")[1].split(" ")[0] for name in names} >= {
        *("barrier", "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather"),
        *("scatter", "all_gather_v", "split"),
    }
    messages = [name for name in names if "send" in name or "recv" in name]
    assert len(messages) == 3 * size
    assert len(database.ncclcalls) == sum(len(each.expected_ranks) for each in database.collectives)


def _one_stays_away(comm: hk.Communicator, folder: str) -> None:
    comm.all_reduce(np.ones(4))
    if comm.rank == 2:
        time.sleep(2)
        comm.dump_flight_record(folder)
    else:
        with contextlib.suppress(hk.CommTimeout, hk.Aborted):
            comm.all_reduce(np.ones(8), timeout=1)


def test_torchs_analyser_names_the_rank_that_did_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_RECORD_DIR", str(tmp_path))
    hk.spawn(_one_stays_away, 3, str(tmp_path / "flight"), timeout=60)
    said = _analyse(tmp_path / "flight")
    assert "Not all ranks joining collective, sequence number: 2" in said
    assert "missing ranks: {2}" in said and "gloo:all_reduce" in said and "input sizes: [[8]]" in said


def _record(op: str, seq: int, **fields: Any) -> Record:
    facts = {"nbytes": 16, "dtype": "float32", "reduction": None, "peer": None, "tag": 0, "backend": "shm"}
    state = {"state": "completed", "is_async": False, "begin_ns": 1000 * seq, "seconds": 1e-6}
    return Record(op=op, seq=seq, **{**facts, **state, **fields})


def test_ranks_that_have_forgotten_different_parts_are_aligned(tmp_path: Path) -> None:
    for rank, first in enumerate((5, 8)):
        records = [_record("all_reduce", seq) for seq in range(first, 20)]
        write_flight_record(tmp_path / "flight", rank=rank, groups=[GroupRecords("a", "world", [0, 1], rank, records)])
    database = _database(tmp_path / "flight", tmp_path)
    assert [each.collective_seq_id for each in database.collectives] == list(range(8, 20))
    assert all(each.pass_check for each in database.collectives)


def test_different_sizes_are_a_mismatch(tmp_path: Path) -> None:
    for rank in range(2):
        records = [_record("all_reduce", 1), _record("all_reduce", 2, nbytes=16 + 4 * rank)]
        write_flight_record(tmp_path / "flight", rank=rank, groups=[GroupRecords("a", "world", [0, 1], rank, records)])
    assert "SIZE_OR_SYNTAX_MISMATCH" in _analyse(tmp_path / "flight")


def test_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        write_flight_record(tmp_path / "file" / "flight", rank=0, groups=[])
