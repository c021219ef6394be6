"""Whatever tests start runs the code of the checkout that they lie in: without that, a bug in a copy is not seen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hocket._native
from hocket.boot.launcher import run_job
from hocket.boot.rank_process import runner_command
from hocket.boot.supervisor import Patience

from ..program import FORK_SERVER, run_python
from .catalogue import ROOT

pytestmark = pytest.mark.timeout(120)
_PATIENCE = Patience(timeout_s=60.0)
_SCRIPT = """
import json, pathlib, sys
import hocket, hocket._native, hocket.boot.supervisor
origins = [each.__file__ for each in (hocket, hocket._native, hocket.boot.supervisor)]
pathlib.Path(sys.argv[1]).write_text(json.dumps(origins))
"""

STARTS: dict[str, Callable[[list[str]], object]] = {
    "fresh program": lambda words: subprocess.run([sys.executable, *words], check=True, timeout=60),
    "program": lambda words: run_python(*words),
    "fresh ranks": lambda words: run_job(runner_command(words), 1, patience=_PATIENCE),
    "forked ranks": lambda words: FORK_SERVER.run_job(runner_command(words), 1, patience=_PATIENCE),
}


@pytest.mark.parametrize("start", STARTS)
def test_the_code_of_this_checkout_runs(start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # else the checkout may be found by being the folder of the program
    script, told = tmp_path / "origins.py", tmp_path / "told.json"
    script.write_text(_SCRIPT)
    STARTS[start]([str(script), str(told)])
    package = ROOT / "src" / "hocket"
    supervisor = package / "boot" / "supervisor.py"
    assert json.loads(told.read_text()) == [str(package / "__init__.py"), hocket._native.__file__, str(supervisor)]
    assert Path(hocket._native.__file__).is_relative_to(sys.prefix)
