"""Open MPI and MPICH in one process, beside shared memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hocket as hk
from hocket.backends._mpi import find_library

from ..naming import raises
from ..tier import full, is_full

RANK_SCRIPT = Path(__file__).with_name("two_mpis_rank.py")
NUM_SEEDS = 1000 if os.environ.get("HOCKET_SOAK") else 40 if is_full() else 15
LIMIT_S = 3500 if os.environ.get("HOCKET_SOAK") else 150


@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("open_mpi", ["mpi:openmpi", pytest.param("mpi", marks=full)])
def test_random_programs(tmp_path: Path, open_mpi: str, launcher_command: Callable[[str], list[str]]) -> None:
    done = subprocess.run(
        [*launcher_command("open mpi"), str(RANK_SCRIPT), open_mpi, "0", str(NUM_SEEDS)],
        cwd=tmp_path,
        env={**os.environ, "HOCKET_RECORD_DIR": str(tmp_path / "records"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout.count("all programs went through")) == (0, 2), done.stdout + done.stderr


def _by_name(comm: hk.Communicator) -> str:
    comm.finalize()
    with raises(hk.BackendUnavailable, names=("'mpi:openmpi'", "UCX_MEM_MMAP_HOOK_MODE=none")):
        hk.init(backends=["shm", "mpi:openmpi"], timeout=30)
    both = hk.init(
        backends=["shm", "mpi", "mpi:mpich"], timeout=30
    )  # the same library twice, independent of each other
    x: Any = both.empty(1000)
    for backend in both.backends:
        x[...] = both.rank + 1
        both.all_reduce(x, backend=backend)
        assert (x == 3).all()
    word = both.backends["mpi:mpich"]
    both.finalize()
    default = hk.init(timeout=30)
    assert "mpi:mpich" not in {**default.backends, **default.backends.left_out}
    return word


@pytest.mark.timeout(90)
def test_a_family_by_name() -> None:
    assert all(word.startswith("MPICH 5") for word in hk.spawn(_by_name, 2, timeout=80))


LOADED_BEFORE = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
import hocket as hk

comm = hk.init(timeout=30)
assert comm.backends["mpi"].startswith("Open MPI"), comm.backends  # "mpi" means the one that was loaded
comm.finalize()
try:
    hk.init(backends=["shm", "mpi:mpich"])
except hk.BackendUnavailable as error:
    print(error, flush=True)
"""


@pytest.mark.timeout(90)
def test_two_need_to_be_known_early(tmp_path: Path, launcher_command: Callable[[str], list[str]]) -> None:
    """Both bring UCX, which hooks into malloc; a program that has loaded one without disabling that gets an error."""
    (tmp_path / "script.py").write_text(LOADED_BEFORE)
    env = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    done = subprocess.run(
        [*launcher_command("hocket run"), "script.py"],
        cwd=tmp_path,
        env={**env, "MPI4PY_LIBMPI": str(find_library("openmpi"))},
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Both ranks may write into one line.
    for name in ("Open MPI", "MPICH", "UCX_MEM_MMAP_HOOK_MODE=none", "UCX_MEM_EVENTS=no"):
        assert done.stdout.count(name) == 2, done.stdout + done.stderr
