"""`hk.spawn` from a script: ranks can import the script's modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(100)

SCRIPT = """
import pathlib
import sys

sys.path.append(pathlib.Path("of no use"))
import hocket as hk
from beside import told

if __name__ == "__main__":
    print(hk.spawn(told, 2, timeout=60))
"""
BESIDE = """
def told(comm):
    return comm.rank + 10
"""


def test_a_module_beside_the_script_and_not_that_of_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "beside.py").write_text("told = None")
    result = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        capture_output=True,
        text=True,
        timeout=90,
        cwd=tmp_path / "elsewhere",
    )
    assert result.stdout.strip() == "[10, 11]", result.stderr
