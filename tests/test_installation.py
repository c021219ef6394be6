"""`make install` installs files with known hashes and a hardened native module."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hocket._native as native

ROOT = Path(__file__).parents[1]
LOCKED = (ROOT / "constraints.txt").read_text()
LINE = re.compile(r"^([A-Za-z0-9_.-]+)==(\S+)(?: \\\n    --hash=sha256:[0-9a-f]{64})+$", re.MULTILINE)


def locked() -> dict[str, str]:
    """The version of every project in constraints.txt."""
    return {canonicalize_name(project): version for project, version in LINE.findall(LOCKED)}


def test_every_line_of_the_constraints_has_a_version_and_hashes() -> None:
    assert LINE.sub("", LOCKED).strip() == ""
    assert len(locked()) == LOCKED.count("==") > 80


def test_what_is_locked_is_installed_in_that_version() -> None:
    found = importlib.metadata.distributions()
    installed = {canonicalize_name(one.name): one.version.partition("+")[0] for one in found}
    assert {name: installed.get(name) for name in locked()} == locked()


def test_whatever_this_project_asks_for_is_locked() -> None:
    command = [sys.executable, str(ROOT / "tools" / "requirements.py"), "dev"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split("\n")
    assert {canonicalize_name(Requirement(line).name) for line in listed if line} <= locked().keys()


@pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file")
def test_the_native_module_is_hardened() -> None:
    def readelf(option: str) -> str:
        command = ["readelf", "-W", option, native.__file__]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    assert "BIND_NOW" in readelf("-d")
    assert "GNU_RELRO" in readelf("-l")
    assert not re.search(r"GNU_STACK.* RWE ", readelf("-l"))
    symbols = readelf("--dyn-syms")
    assert "__stack_chk_fail" in symbols and "__snprintf_chk" in symbols
