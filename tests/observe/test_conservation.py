"""Bytes of operations, messages, connections and devices: they agree where nothing is missing, and say where it is."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.observe import ConservedBytes, ObservedRun, conservation, open_run, record_run

pytestmark = pytest.mark.timeout(150)

_GLOO = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
time.sleep(0.5)  # a connection belongs to somebody once it was seen
for size in (250_000, 10, 300_001):
    dist.all_reduce(torch.ones(size))
dist.broadcast(torch.ones(200_000), 1)
dist.all_gather_into_tensor(torch.ones(200_000), torch.ones(100_000))
dist.barrier()
dist.destroy_process_group()
"""
_HOCKET = """
import numpy as np
import hocket as hk
with hk.init() as comm:
    for algorithm in ("ring", "recursive_doubling", "rabenseifner"):
        comm.all_reduce(np.ones(30_000), algorithm=algorithm)
    comm.broadcast(np.ones(30_000), 2, algorithm="binomial")
    comm.split(comm.rank // 2).all_reduce(np.ones(50_000), algorithm="ring")
"""


def _run(folder: Path, program: str, num_ranks: int) -> ObservedRun:
    (folder / "program.py").write_text(program)
    launch = [sys.executable, "-m", "hocket.cli", "run", "-n", str(num_ranks), str(folder / "program.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    assert record_run(launch, folder / "run", interval_s=0.1, environment=environment).exit_code == 0
    return open_run(folder / "run")


def _of(rows: tuple[ConservedBytes, ...], edge: str) -> dict[str, ConservedBytes]:
    return {row.what: row for row in rows if row.edge == edge}


@pytest.fixture(scope="module")
def over_gloo(tmp_path_factory: pytest.TempPathFactory) -> ObservedRun:
    return _run(tmp_path_factory.mktemp("gloo"), _GLOO, 2)


def test_gloo_sends_what_its_collectives_need(over_gloo: ObservedRun) -> None:
    found = _of(conservation(over_gloo), "messages to connections")
    assert found.keys() == {"rank 0 to rank 1", "rank 1 to rank 0"}
    reduced = 4 * (250_000 + 10 + 300_001)  # over two ranks, a ring sends the array once in each direction
    assert found["rank 0 to rank 1"].expected_nbytes == pytest.approx(reduced + 400_000)
    assert found["rank 1 to rank 0"].expected_nbytes == pytest.approx(reduced + 400_000 + 800_000)
    for row in found.values():
        assert row.is_modelled and 0 <= row.residual < 0.01


def test_schedules_send_what_their_tables_say(tmp_path: Path) -> None:
    rows = conservation(_run(tmp_path, _HOCKET, 4))
    found = _of(rows, "operations to messages")
    assert found["world"].is_explained and found["world"].expected_nbytes > 4 * 30_000 * 8
    groups = [row for what, row in found.items() if what != "world"]
    # Two groups of two ranks: each rank sends its array once.
    assert sum(row.expected_nbytes for row in groups) == sum(row.found_nbytes for row in groups) == 4 * 50_000 * 8


def test_bytes_that_are_missing_are_told(over_gloo: ObservedRun) -> None:
    (host,) = over_gloo.connections
    halved = host.rows.copy()
    halved["sent_nbytes"] /= 2
    rows = conservation(replace(over_gloo, connections=(replace(host, rows=halved),)))
    assert _of(rows, "messages to connections") == {} or not any(
        row.is_explained for row in _of(rows, "messages to connections").values()
    )
    device = _of(rows, "connections to device")[f"{host.host} lo"]
    assert device.found_nbytes - device.expected_nbytes > 2_000_000
