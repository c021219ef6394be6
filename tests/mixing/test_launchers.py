"""MPI beside shared memory under every launcher: MPI's own, torchrun, and hocket's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ..tier import sample

SCRIPT = """
import sys
import numpy as np
import hocket as hk

comm = hk.init(backends=["shm", "mpi"], timeout=60)
assert comm.size == 2 and sys.argv[1] in comm.backends["mpi"], comm.backends
x = np.full(300_000, comm.rank + 1.0, np.float32)
comm.all_reduce(x, backend="mpi")
assert (x == 3).all()
x[:] = comm.rank
x[7] = np.nan if comm.rank else 0.0
comm.all_reduce(x, "max", backend="mpi")
assert np.isnan(x[7]) and (x[8:] == 1).all()
half = np.full(1000, comm.rank + 1.0, np.float16)
comm.all_reduce(half, backend="mpi")
assert (half == 3).all()
out = np.zeros(50_000)
work = comm.irecv(out, 1 - comm.rank, tag=5, backend="mpi")
comm.send(np.full(50_000, comm.rank + 5.0), 1 - comm.rank, tag=5, backend="mpi")
work.wait()
assert (out == 6 - comm.rank).all()
part = comm.split(0, key=-comm.rank)
part.all_reduce(half, backend="mpi")
assert (half == 6).all()
print("ok", flush=True)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("launcher", sample(["hocket run", "torchrun", "hydra", "open mpi"], 2))
def test_mpi(tmp_path: Path, launcher: str, launcher_command: Callable[[str], list[str]]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    family = "Open MPI" if launcher == "open mpi" else "MPICH"
    done = subprocess.run(
        [*launcher_command(launcher), str(script), family],
        cwd=tmp_path,
        env={**os.environ, "HOCKET_RECORD_DIR": str(tmp_path / "records")},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout.count("ok")) == (0, 2), done.stdout + done.stderr
