"""The environment every test starts from, whatever started pytest."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import cloudpickle
import pytest

_SPAWNING = ("comm", "conformance", "mixing", "model", "tune")


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
