"""`hocket observe findings`, `breakdown`, `matrix` and `diff`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hocket.observe import record_run

from ..program import hocket

pytestmark = pytest.mark.timeout(180)
_PROGRAM = """
import sys, time
import numpy as np
import hocket as hk
from hocket import observe

with hk.init() as comm:
    for step in range(40):
        with observe.region("forward", step=step):
            time.sleep(float(sys.argv[1]) if comm.rank == 1 else 0.001)
        comm.all_reduce(np.ones(1000, np.float32), algorithm="ring")
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of two equal ranks, and one in which the second rank sleeps in each step."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "program.py").write_text(_PROGRAM)
    for name, seconds in (("before", "0.001"), ("after", "0.1")):
        launch = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(folder / "program.py"), seconds]
        assert record_run(launch, folder / name).exit_code == 0
    return folder / "before", folder / "after"


def _parsed(text: str) -> dict[str, Any]:
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_findings(runs: tuple[Path, Path]) -> None:
    done = hocket("observe", "findings", str(runs[1]), "--json")
    first = _parsed(done.stdout)["findings"][0]
    assert done.returncode == 0 and (first["kind"], first["layer"], first["process"]["rank"]) == (
        "straggler", "not running", 1
    )  # fmt: skip
    assert first["seconds"] > 0.1 and first["evidence"]["num_compared"] >= 40
    shown = hocket("observe", "findings", str(runs[1]), "--fail")
    assert shown.returncode == 1 and "straggler" in shown.stdout and "rank 1" in shown.stdout


def test_breakdown(runs: tuple[Path, Path]) -> None:
    rows = _parsed(hocket("observe", "breakdown", str(runs[0]), "--json").stdout)["rows"]
    (row,) = [each for each in rows if each["op"] == "all_reduce"]
    assert (row["count"], row["nbytes"], row["algorithm"], row["num_ranks"]) == (80, 80 * 4000, "ring", 2)
    shown = hocket("observe", "breakdown", str(runs[0]))
    assert shown.returncode == 0 and "all_reduce" in shown.stdout and "ring" in shown.stdout


def test_matrix(runs: tuple[Path, Path], tmp_path: Path) -> None:
    picture = tmp_path / "matrix.png"
    done = hocket("observe", "matrix", str(runs[0]), "--json", "--draw", str(picture))
    assert _parsed(done.stdout)["sent_nbytes"] == [[0, 40 * 4000], [40 * 4000, 0]]
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = hocket("observe", "matrix", str(runs[0]))
    assert shown.returncode == 0 and shown.stdout.count("156.2 KiB") == 2


def test_diff(runs: tuple[Path, Path]) -> None:
    before, after = map(str, runs)
    done = hocket("observe", "diff", before, after, "--fail-on", "50%", "--json")
    found = _parsed(done.stdout)
    (region,) = [row for row in found["rows"] if row["what"] == "region forward"]
    assert done.returncode == 1 and region["what"] in found["slower"]
    assert region["verdict"] == "slower" and region["low"] > 1.5 and region["before_s"] < region["after_s"]
    same = hocket("observe", "diff", before, before, "--fail-on", "1%")
    assert same.returncode == 0 and "slower" not in same.stdout + same.stderr


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("findings", "nowhere"), "nowhere"),
        (("breakdown", "."), "run.json"),
        (("matrix", "RUN", "--job", "77"), "77"),
        (("matrix", "RUN", "--draw", "matrix.txt"), "matrix.txt"),
        (("diff", "RUN", "RUN", "--fail-on", "fast"), "fast"),
        (("diff", "RUN", "RUN", "--fail-on", "-1%"), "-1%"),
        (("diff", "RUN", "RUN", "--fail-on", "nan"), "nan"),
        (("diff", "RUN", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_shown(runs: tuple[Path, Path], arguments: tuple[str, ...], name: str) -> None:
    done = hocket("observe", *(str(runs[0]) if each == "RUN" else each for each in arguments))
    assert done.returncode in (1, 2) and name in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_run_of_a_few_operations_is_json_too(tmp_path: Path) -> None:
    """Too few for an interval."""
    loop = "for _ in range(3):\n    time.sleep(comm.rank / 5)\n    comm.barrier()"
    (tmp_path / "program.py").write_text(f"import hocket as hk, time\ncomm = hk.init()\n{loop}")
    record_run([sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(tmp_path / "program.py")], tmp_path / "run")
    for verb in ("findings", "breakdown", "matrix"):
        assert _parsed(hocket("observe", verb, str(tmp_path / "run"), "--json").stdout)["run"]
    found = _parsed(hocket("observe", "diff", str(tmp_path / "run"), str(tmp_path / "run"), "--json").stdout)
    assert {row["low"] for row in found["rows"]} == {None}


def test_looking_at_the_help_loads_nothing_of_the_room() -> None:
    program = (
        "import sys, hocket.cli.observe; print([name for name in sys.modules if name.startswith('hocket.observe')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
