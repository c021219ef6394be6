"""The laboratory of two hosts, as a fixture. Without root or Debian's iproute2 these tests fail by name."""

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

DEADLINE_S = 150.0
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
