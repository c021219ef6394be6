"""The program that hangs with plain MPI beside gloo completes with hocket, in many variations."""

from __future__ import annotations

import importlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hocket as hk
from hocket.backends._mpi import find_library
from hocket.boot.pmi import connect_locally, start_local_server
from hocket.reserved_port import ReservedPort

from ..load import scaled
from ..tier import full, is_full

NUM_SEEDS = 1000 if is_full() else 200
_SCRIPT = Path(__file__).parent / "plain_libraries.py"


def _run_plain(order: str, deadline_s: float) -> list[str]:
    """Run the program on two processes; return the output of each until the deadline."""
    before = set(Path("/dev/shm").glob("mpich_shm_*"))
    port = ReservedPort()
    name = start_local_server(2)
    connections = [connect_locally(name, rank) for rank in range(2)]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(_SCRIPT), order],
            env={
                **os.environ,
                "MPI4PY_LIBMPI": str(find_library("mpich")),
                "PMI_FD": str(connection.fileno()),
                "PMI_RANK": str(rank),
                "PMI_SIZE": "2",
                "MPIR_CVAR_PMI_VERSION": "1",
                "MASTER_PORT": str(port.number),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=[connection.fileno()],
        )
        for rank, connection in enumerate(connections)
    ]
    for connection in connections:
        connection.close()
    try:
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline and any(each.poll() is None for each in ranks):
            time.sleep(0.05)
    finally:
        for process in ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    printed = [process.communicate()[0] for process in ranks]
    port.close()
    for left in set(Path("/dev/shm").glob("mpich_shm_*")) - before:  # killed MPI jobs leave theirs
        left.unlink(missing_ok=True)
    return printed


@full
@pytest.mark.timeout(120)
def test_plain_libraries_hang_when_waits_cross() -> None:
    assert _run_plain("aligned", 60) == ["done\n"] * 2
    assert _run_plain("crossed", 10) == [""] * 2


def _cross(comm: hk.Communicator, seeds: range) -> int:
    comm.finalize()
    importlib.import_module("torch").set_num_threads(1)
    comm = hk.init(backends=["gloo", "mpi"], timeout=scaled(30), progress="caller")
    rng = random.Random(seeds[0])
    for _ in seeds:
        backends = rng.sample(["gloo", "mpi"], 2)
        num_items = rng.choice((1 << 12, 1 << 14, 1 << 17))
        first, second = (np.ones(num_items, np.float32) for _ in range(2))
        work = comm.all_reduce(first, backend=backends[0], async_op=True)
        if comm.rank == 0:
            comm.all_reduce(second, backend=backends[1])
            work.wait()
        else:
            work.wait()
            comm.all_reduce(second, backend=backends[1])
        assert (first == 2).all() and (second == 2).all()
    return len(seeds)


@pytest.mark.timeout(200)
def test_crossed_waits() -> None:
    assert hk.spawn(_cross, 2, range(NUM_SEEDS), timeout=180) == [NUM_SEEDS] * 2
