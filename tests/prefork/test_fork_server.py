"""What is forked looks like what is started afresh."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hocket.boot.supervisor import Patience
from hocket.errors import LaunchError

from ..program import FORK_SERVER

pytestmark = pytest.mark.timeout(100)

FACTS = """
import json, os, signal, sys, threading
seen = "torch" in sys.modules
import torch
print(json.dumps({
    "argv": sys.argv[1:], "name": __name__, "file": os.path.basename(__file__), "folder": os.getcwd(),
    "variable": os.environ["TOLD"], "others": "HOME" in os.environ, "seen": seen, "torch": torch.ones(2).sum().item(),
    "again": sys.modules["torch"] is torch, "leads": os.getpgid(0) == os.getpid(), "threads": threading.active_count(),
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:3], "input": sys.stdin.read(),
    "signals": [signal.getsignal(each) == signal.SIG_DFL for each in (signal.SIGTERM, signal.SIGCHLD)],
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
}))
"""


def _run(
    arguments: list[str], folder: Path, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """Run a forked program, in the full tier, too."""
    return FORK_SERVER.run_program(arguments, folder=folder, environment=environment, timeout_s=60.0)


def test_a_program_cannot_tell(tmp_path: Path) -> None:
    script = tmp_path / "facts.py"
    script.write_text(FACTS)
    variables = {name: value for name, value in os.environ.items() if name != "HOME"} | {"TOLD": "all"}
    forked = _run([str(script), "a", "--b"], tmp_path, variables)
    fresh = subprocess.run(
        [sys.executable, str(script), "a", "--b"],
        cwd=tmp_path,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        process_group=0,
    )
    assert forked.returncode == fresh.returncode == 0, forked.stderr + fresh.stderr
    assert json.loads(forked.stdout) == json.loads(fresh.stdout)


@pytest.mark.parametrize("end", ["sys.stdout = open('/dev/full', 'w'); print(1)", "sys.exit([1, 'two'])"])
def test_ends_that_only_the_interpreter_sees(tmp_path: Path, end: str) -> None:
    script = tmp_path / "ends.py"
    script.write_text(f"import sys\n{end}\n")
    forked = _run([str(script)], tmp_path)
    fresh = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert forked.returncode == fresh.returncode != 0
    assert forked.stderr.splitlines()[-1] == fresh.stderr.splitlines()[-1]


def test_draws_are_those_of_each_program(tmp_path: Path) -> None:
    script = tmp_path / "draws.py"
    script.write_text("import random, numpy\nprint(random.random(), numpy.random.rand())\n")
    drawn = [number for _ in range(3) for number in _run([str(script)], tmp_path).stdout.split()]
    assert len(set(drawn)) == len(drawn) == 6


def test_what_cannot_be_started_is_told() -> None:
    for _ in range(5):
        with pytest.raises(LaunchError):
            FORK_SERVER.run_job(["/no/such/thing"], 1, patience=Patience(timeout_s=20.0))


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("sys.exit(7)", 7), ("sys.exit('no')", 1), ("1 / 0", 1), ("os._exit(3)", 3), ("os.abort()", -6)],
)
def test_ends_of_a_program(tmp_path: Path, end: str, code: int) -> None:
    script = tmp_path / "ends.py"
    script.write_text(f"import atexit, os, sys\natexit.register(print, 'at exit')\nprint('said', flush=True)\n{end}\n")
    done = _run([str(script)], tmp_path)
    assert done.returncode == code
    assert done.stdout.split("\n")[:-1] == (["said"] if "os." in end else ["said", "at exit"])
    assert ("ZeroDivisionError" in done.stderr, "no" in done.stderr.split()) == (
        end == "1 / 0",
        end == "sys.exit('no')",
    )


def test_a_program_can_be_killed(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import signal\nprint('here', flush=True)\nwhile True: signal.pause()\n")
    program = FORK_SERVER.start_program([str(script)], folder=tmp_path, environment=os.environ)
    with pytest.raises(subprocess.TimeoutExpired):
        program.communicate(timeout=0.05)
    assert program.poll() is None
    program.send_signal(signal.SIGKILL)
    program.communicate(timeout=60)
    assert program.returncode == -signal.SIGKILL
