"""From an empty environment: what somebody writes who has read README and the pages, and nothing else.

The environment has hocket, installed as a user would, and its extras; not this repository, and no development tools.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..tier import is_full

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "newcomer"
EXTRAS = "torch,mpi,plot,keras"
NOTEBOOK = ("nbclient==0.10.2", "ipykernel==6.29.5")


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of a shell in which hocket is installed, in an empty virtual environment."""
    folder = tmp_path_factory.mktemp("newcomer")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, timeout=120)
    python = str(folder / "venv" / "bin" / "python")
    pins = [
        line.partition(" ")[0]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if re.match(r"[A-Za-z0-9_.-]+==", line)
    ]
    (folder / "versions.txt").write_text("\n".join(pins))
    pip = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--constraint", str(folder / "versions.txt")]
    # PyTorch from where `make install` has put its build for CPUs, and the sources as git has them: a build in this
    # folder would use, and spoil, what the build of `make install` has left.
    torch = next(each for each in pins if each.startswith("torch=="))
    subprocess.run([*pip, "--no-deps", "--no-index", "--find-links", str(ROOT / "build" / "wheels"), torch], check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if name.partition("/")[0] not in ("tests", "docs"):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / "source" / name)
    # -O1 compiles in half the time; nothing here is fast or slow. `make install` builds what is shipped.
    quickly = [] if is_full() else ["--config-settings", "cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O1"]
    subprocess.run([*pip, *quickly, f"{folder / 'source'}[{EXTRAS}]"], check=True, timeout=900, cwd=folder)
    subprocess.run([*pip, *NOTEBOOK], check=True, timeout=300, cwd=folder)
    return {
        "PATH": f"{folder / 'venv' / 'bin'}:/usr/bin:/bin",
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "KERAS_BACKEND": "torch",
    }


COMMANDS = {
    "operations": "hocket run -n 4 operations.py",
    "alone": "python operations.py",
    "torchrun": "torchrun --nproc-per-node 2 ddp.py hocket",
    "heat": "hocket run -n 4 heat.py",
    "Keras": "hocket run -n 2 keras_model.py",
    "cluster": "python cluster.py",
    "notebook": "python notebook.py",
    "commands": "sh commands.sh",
}
_GLOO_ABORTED = 128 + signal.SIGABRT
"""torch's gloo, alone, too: a thread of its process group releases a tensor of Python while the interpreter ends, and
is ended inside of a destructor ("terminate called without an active exception"): in 2 of 15 runs of two ranks."""
_MOST_RUNS = 10


def run(command: str, environment: dict[str, str], folder: Path) -> str:
    for each in PROGRAMS.iterdir():
        if each.is_file():
            (folder / each.name).write_bytes(each.read_bytes())
    for _ in range(_MOST_RUNS if command.endswith(" gloo") else 1):
        done = subprocess.run(command.split(), env=environment, cwd=folder, capture_output=True, text=True, timeout=60)
        if done.returncode != _GLOO_ABORTED:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.timeout(1500)  # the first one installs
@pytest.mark.parametrize("name", COMMANDS)
def test_a_newcomers_programs(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    assert run(COMMANDS[name], environment, tmp_path)
    if name == "commands":
        assert (tmp_path / "chimera.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout(1500)
def test_a_training_over_gloo_gives_the_same_over_hocket(environment: dict[str, str], tmp_path: Path) -> None:
    over_gloo, over_hocket = (
        run(f"hocket run -n 2 ddp.py {name}", environment, tmp_path) for name in ("gloo", "hocket")
    )
    assert over_gloo == over_hocket and os.fspath(tmp_path) not in over_gloo
