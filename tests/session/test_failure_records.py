"""The files of ranks whose communicator fails, for each way in which they are notified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hocket as hk


def _aborted_by_rank_1(comm: hk.Communicator) -> bool:
    x = bytearray(8)
    if comm.rank == 1:
        for peer in (0, 2):  # both continue to the all_reduce
            comm.recv(x, peer)
        comm.abort("the data ran out")
    else:
        comm.send(x, 1)
    with pytest.raises(hk.Aborted):
        comm.all_reduce(x)
    return True


def test_who_hears_of_an_abort_leaves_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_RECORD_DIR", str(tmp_path))
    assert all(hk.spawn(_aborted_by_rank_1, 3, timeout=50))
    for rank in (0, 2):
        record = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert (record["rank"], record["error"]["type"]) == (rank, "Aborted")
        assert [each["op"] for each in record["records"]][-2:] == ["send", "all_reduce"]
