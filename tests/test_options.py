"""What this project's pytest options select, scale and refuse."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from . import options
from .load import FACTOR_VARIABLE, BusyProcesses, scale_subprocesses
from .program import start_python

ROOT = Path(__file__).parents[1]
LEAVING = "tests/faults/test_leaving.py"

WRONG: dict[Callable[[str], object], list[str]] = {
    options.part: ["", "2", "0/4", "5/4", "1/0", "a/4", "1/\N{SUPERSCRIPT TWO}", "-1/4", "1/4/5"],
    options.number_of_processes: ["", "-1", "x", "1.5", "10000"],
    options.factor: ["", "0", "-1", "0.5", "1e4", "nan", "inf", "x"],
}


@pytest.mark.parametrize(("read", "text"), [(read, text) for read, texts in WRONG.items() for text in texts])
def test_values_that_cannot_be(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        read(text)
    assert repr(text) in str(caught.value)


def test_values_that_can_be() -> None:
    assert (options.part("2/4"), options.number_of_processes("8")) == (options.Part(2, 4), 8)
    assert options.factor("2.5") == 2.5


_COLLECT_EACH = """
import contextlib, io, json, sys, pytest
found = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *arguments])
    assert code in (0, 5), text.getvalue()
    found.append([line for line in text.getvalue().splitlines() if "::" in line])
print(json.dumps(found))
"""


def _collected(*commands: Sequence[str]) -> list[set[str]]:
    """Return the tests that each list of arguments selects; one process collects all, as its imports take longest."""
    done = subprocess.run(
        [sys.executable, "-c", _COLLECT_EACH, json.dumps(commands)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [set(each) for each in json.loads(done.stdout)]


@pytest.mark.timeout(300)
def test_parts_are_all_tests_once_whatever_else_is_selected() -> None:
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "memory").glob("test_*.py"))
    halves = [["--tier", "full", "--part", f"{number}/2"] for number in (1, 2)]
    whole, *found = _collected(
        ["--tier", "full", *files], *([*half, *files] for half in halves), *([*half, files[0]] for half in halves)
    )
    parts, own = found[:2], found[2:]
    assert sum(map(len, parts)) == len(whole) and set().union(*parts) == whole
    assert all(some <= part for some, part in zip(own, parts, strict=True)) and any(own)


@pytest.mark.timeout(300)
def test_what_is_asked_for_by_name_is_in_every_tier() -> None:
    sampled, everything, chosen = _collected([LEAVING], ["--tier", "full", LEAVING], [LEAVING, "-k", "thread"])
    assert sampled < everything
    assert chosen <= sampled
    left_out = min(everything - sampled)
    assert _collected([left_out]) == [{left_out}]


@pytest.mark.timeout(60)
def test_deadlines_are_scaled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FACTOR_VARIABLE, "2")
    scale_subprocesses(monkeypatch)
    (tmp_path / "waits.py").write_text("import os, sys, time\nos.close(1), os.close(2)\ntime.sleep(50)\n")
    fresh = subprocess.Popen([sys.executable, "waits.py"], cwd=tmp_path, stdout=subprocess.PIPE)
    with fresh, start_python("waits.py", folder=tmp_path, environment={}) as forked:
        for process in (fresh, forked):
            began_s = time.monotonic()
            with pytest.raises(subprocess.TimeoutExpired):
                process.communicate(timeout=0.5)
            assert 1.0 <= time.monotonic() - began_s < 10.0
            process.kill()


def test_busy_processes_are_there_and_end() -> None:
    busy = BusyProcesses(2)
    pids = [process.pid for process in busy._processes]
    assert all(Path(f"/proc/{pid}/stat").read_text().split()[5] == str(pid) for pid in pids)  # each in its own session
    busy.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
