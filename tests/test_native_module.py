"""The native module as seen by other libraries in the same process."""

from __future__ import annotations

import subprocess

from hocket import _native


def test_it_exports_its_initialiser_alone() -> None:
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=posix", _native.__file__],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["PyInit__native"]
