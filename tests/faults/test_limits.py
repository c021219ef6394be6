"""Process limits: too few file descriptors, and file size limits, which also apply to shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..naming import assert_names

pytestmark = pytest.mark.timeout(120)
DEADLINE_S = 60.0

# Rank argv[2] may open argv[1] more descriptors than it has open.
_FEW = """
import os, resource, sys, time
import numpy as np
import hocket as hk
rank, init = int(os.environ["RANK"]), hk.init  # looked up here, because the lazy import opens files
if rank == int(sys.argv[2]):
    most = len(os.listdir("/proc/self/fd")) - 1 + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
begin_s = time.monotonic()
try:
    comm = init(backends="shm", timeout=40)
except hk.ResourceExhausted as error:
    os.write(1, f"refused {time.monotonic() - begin_s:.1f} {error}\\n".encode())
else:
    x = np.ones(3)
    comm.all_reduce(x)
    child = comm.split(0)
    child.all_reduce(x)
    assert (x == comm.size**2).all()
    comm.finalize()
    os.write(1, b"works\\n")
"""

_PLAIN = """
import numpy as np
import hocket as hk
comm = hk.init(backends="shm", timeout=40)
x = np.ones(1 << 20)
comm.all_reduce(x)
y = comm.empty(1 << 20, np.float64)
y[:] = 1
comm.all_reduce(y)
for _ in range(300):  # slots of finalized communicators are reused
    child = comm.dup()
    child.barrier()
    child.finalize()
assert (x == 2).all() and (y == 2).all()
comm.finalize()
"""


def run(folder: Path, num_ranks: int, program: str, *args: str, shell: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "hocket.cli", "run", "-n", str(num_ranks), str(folder / "program.py"), *args]
    if shell:
        command = ["bash", "-c", f'{shell} && exec "$@"', "bash", *command]
    environment = os.environ | {"HOCKET_RECORD_DIR": str(folder / "records")}
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20])
def test_the_rank_without_descriptors_is_named_on_all_ranks(tmp_path: Path, count: int, victim: int) -> None:
    done = run(tmp_path, 3, _FEW, str(count), str(victim))
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    if lines == ["works"] * 3:
        assert count >= 8
        return
    assert count <= 16
    for line in lines:
        _, seconds, text = line.split(" ", 2)
        assert float(seconds) < 10
        assert_names(text, f"rank {victim}", "ulimit -n")
    assert len(lines) == 3


@pytest.mark.parametrize("kib", [10 << 20, 1 << 20])
def test_a_sufficient_file_size_limit(tmp_path: Path, kib: int) -> None:
    done = run(tmp_path, 2, _PLAIN, shell=f"ulimit -f {kib}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kib", [1000, 100_000])
def test_a_file_size_limit_that_is_too_small(tmp_path: Path, kib: int) -> None:
    done = run(tmp_path, 2, _PLAIN, shell=f"ulimit -f {kib}")
    assert done.returncode != 0
    assert_names(done.stderr, "ResourceExhausted", "ulimit -f", str(kib * 1024))
