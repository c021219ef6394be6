"""The laboratory of two hosts, and ClickHouse, as fixtures. Without root or Debian's iproute2 tests fail by name."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .browser import CHROMIUM
from .clickhouse_parts import PASSWORD, Server

DEADLINE_S = 150.0
_CLICKHOUSE = ("chdb==4.4.0", "chdb-core==26.9.0", "clickhouse-connect==1.12.0", "lz4==4.4.5", "backports.zstd==1.8.0",
               "urllib3==2.8.0", "certifi==2026.10.19.post1")  # fmt: skip
_LAB = Path(__file__).parents[2] / "benchmarks" / "lab.py"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, for tests of the page."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def lab_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lab", _LAB)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lab"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def lab(lab_module: ModuleType) -> Iterator[Any]:
    with lab_module.Lab(1.0) as lab:
        yield lab


@pytest.fixture
def run_commands() -> Iterator[Callable[..., list[subprocess.CompletedProcess[str]]]]:
    """Return run(commands, **environment): runs all of them at once to their ends."""
    started: list[subprocess.Popen[str]] = []

    def run(commands: list[list[str]], **env: Any) -> list[subprocess.CompletedProcess[str]]:
        processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **env)
            for command in commands
        ]
        started.extend(processes)
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
        return [
            subprocess.CompletedProcess(process.args, process.returncode, output)
            for process, output in zip(processes, outputs, strict=True)
        ]

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait()


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ClickHouse in a process, as `clickhouse_connect` drives it."""
    folder = tmp_path_factory.mktemp("packages")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *_CLICKHOUSE]
    subprocess.run(install, check=True, timeout=240)
    return folder


@pytest.fixture(scope="module")
def server(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(packages, tmp_path_factory.mktemp("clickhouse"))
    yield server
    server.kill()


@pytest.fixture
def in_process(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has `clickhouse_connect`, too."""
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HOCKET_CLICKHOUSE_PASSWORD", PASSWORD)
