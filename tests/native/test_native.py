"""Build the core and its native tests, as shipped and with sanitizers, and run them: no sanitizer may report an error.

The builds stay in build/native-<flavour> and are updated, so that only the first run compiles everything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD_DEADLINE_S = 900.0
RUN_DEADLINE_S = 240.0
PROGRAMS = sorted(path.stem for path in Path(__file__).parent.glob("*_test.cpp"))

# Sanitizer builds use -O1, which compiles in half the time; the kernels have flags of their own.
FLAVOURS: dict[str, list[str]] = {
    "plain": [],
    "address": ["-DHOCKET_SANITIZE=address", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"],
    "thread": ["-DHOCKET_SANITIZE=thread", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"],
}
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "halt_on_error=1:detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}
CPU_FLAGS = {"scalar": set(), "avx2": {"avx2", "f16c"}, "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}


def tool(name: str) -> str:
    """Return the path of a tool of this environment, or else of the system."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert found, f"{name} is needed to build the native tests; `make install` installs it"
    return found


def checked(command: list[str], deadline_s: float, environment: dict[str, str] | None = None) -> str:
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=deadline_s,
        env={**os.environ, **(environment or {})},
    )
    assert result.returncode == 0, f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout[-20_000:]}"
    return result.stdout


@cache
def build(flavour: str) -> Path:
    folder = ROOT / "build" / f"native-{flavour}"
    options = [
        "-G",
        "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        "-DHOCKET_PYTHON=OFF",
        "-DHOCKET_TESTS=ON",
        "-DHOCKET_STRICT=ON",
    ]
    checked([tool("cmake"), "-S", str(ROOT), "-B", str(folder), *options, *FLAVOURS[flavour]], BUILD_DEADLINE_S)
    checked([tool("cmake"), "--build", str(folder)], BUILD_DEADLINE_S)
    return folder


def run(flavour: str, program: str, **environment: str) -> None:
    output = checked([str(build(flavour) / program)], RUN_DEADLINE_S, {**SANITIZER_OPTIONS, **environment})
    assert "Sanitizer" not in output, output


@pytest.mark.timeout(BUILD_DEADLINE_S + RUN_DEADLINE_S)
@pytest.mark.parametrize(
    ("flavour", "program"),
    # reduce_test has one thread.
    [(f, p) for f in FLAVOURS for p in PROGRAMS if (f, p) != ("thread", "reduce_test")],
)
def test_program(flavour: str, program: str) -> None:
    run(flavour, program)


@pytest.mark.timeout(BUILD_DEADLINE_S + RUN_DEADLINE_S)
@pytest.mark.parametrize("isa", CPU_FLAGS)
def test_collectives_on_every_instruction_set(isa: str) -> None:
    """Run collectives through the dispatch of kernels, as a job does; reduce_test compares only the kernels."""
    with open("/proc/cpuinfo") as cpuinfo:
        flags = {flag for line in cpuinfo if line.startswith("flags") for flag in line.split()}
    if not CPU_FLAGS[isa] <= flags:
        pytest.skip(f"this CPU has no {isa}")
    run("plain", "shm_test", HOCKET_ISA=isa)
