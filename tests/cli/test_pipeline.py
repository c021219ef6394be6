"""`hocket pipeline`: its output, and its messages about wrong arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from hocket.cli._application import run_command_line

from ..naming import NO_SUCH_FILE, assert_names

pytestmark = pytest.mark.timeout(60)


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def hocket(*arguments: str) -> Done:
    """Run the command in this process, which saves a second; `test_as_a_command` starts a process."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = run_command_line(["pipeline", *arguments])
    return Done(code, out.getvalue(), err.getvalue())


def test_as_a_command() -> None:
    command = [sys.executable, "-m", "hocket.cli", "pipeline", "show", "1f1b", "-n", "2", "-m", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("0 F0")


def test_list() -> None:
    found = json.loads(hocket("list", "--json").stdout)["schedules"]
    assert {"1f1b", "chimera", "zb-v", "dualpipe"} <= {each["name"] for each in found}
    assert "bubble" in hocket("list").stdout and "most_kept unset" in hocket("list").stdout
    kinds = json.loads(hocket("list", "--kinds", "--json").stdout)["kinds"]
    assert {"F", "B", "I", "W", "SYNC_START"} <= {each["kind"] for each in kinds}


def test_show(tmp_path: Path) -> None:
    shown = hocket("show", "chimera", "-n", "4", "-m", "8").stdout
    assert shown.startswith("0 F0")
    assert "bubbles 20.0% of the step" in shown
    path = tmp_path / "mine.txt"
    path.write_text(hocket("show", "zb-v", "--table").stdout)
    assert "0.0% of the span" in hocket("show", str(path)).stdout
    assert json.loads(hocket("show", "zb-v", "--json").stdout)["num_micro_batches"] == 8


def test_simulate() -> None:
    found = json.loads(hocket("simulate", "1f1b", "zb-v", "interleaved", "-n", "8", "-m", "16", "--json").stdout)
    times = {each["schedule"]: each["makespan_s"] for each in found["simulated"]}
    assert times == pytest.approx({"1f1b": 0.069, "zb-v": 0.0515, "interleaved": 0.0585})  # the same work for all
    ratios = {each["schedule"]: (each["bubble_sync"], each["bubble_span"]) for each in found["simulated"]}
    assert ratios["zb-v"] == pytest.approx((0.068, 0.0), abs=1e-3)
    sizes = ("--message", "8MiB", "--gradients", "100MiB")
    table = hocket("simulate", "1f1b", "chimera", *sizes, "--sync", "eager").stdout
    assert "over the bound" in table
    assert "chimera" in table


def test_validate() -> None:
    done = hocket("validate", "zb-v")
    assert done.returncode == 0
    assert "one channel a pair of ranks: no number of slots" in done.stdout
    done = hocket("validate", "1f1b", "--buffering", "rendezvous")
    assert done.returncode == 2
    assert_names(done.stderr, "hocket pipeline", "rendezvous", "tagged:1")
    assert done.stderr.count("rank") > 2
    arguments = ("--activation", "256MiB", "--weights", "2GiB")
    assert hocket("validate", "gpipe", "-m", "64", *arguments, "--limit", "18GiB").returncode == 0
    done = hocket("validate", "gpipe", "-m", "64", *arguments, "--limit", "16GiB")
    assert done.returncode == 2
    assert_names(done.stderr, "rank 0", f"{16 << 30:.6g}")
    assert json.loads(hocket("validate", "1f1b", "--json").stdout)["valid"] is True


def test_convert(tmp_path: Path) -> None:
    path = tmp_path / "zb_v.csv"
    assert hocket("convert", "zb-v", "-o", str(path)).stdout.strip() == str(path)
    assert path.read_text().startswith("0F0,0F1")
    again = tmp_path / "again.json"
    arguments = ("--sync", "lazy", "--steps", "2", "--recompute", "--messages", "fifo")
    assert hocket("convert", str(path), *arguments, "-o", str(again)).returncode == 0
    assert hocket("validate", str(again), "--buffering", "fifo").returncode == 0
    done = hocket("convert", "1f1b", "--split-backward", "--retime", "-o", str(again))
    assert done.returncode == 0
    assert hocket("validate", str(again)).returncode == 0
    done = hocket("convert", "chimera", "-o", str(path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert_names(done.stderr, "chimera", "2")


def test_draw(tmp_path: Path) -> None:
    for name in ("compare.png", "compare.svg", "compare.pdf", "trace.json"):
        path = tmp_path / name
        assert hocket("draw", "1f1b", "chimera", "-o", str(path), "--memory", "--messages").returncode == 0
        assert path.stat().st_size > 5000
    assert json.loads(path.read_text())["traceEvents"]


def test_choose(tmp_path: Path) -> None:
    arguments = ("-n", "4", "--batch-size", "8", "--only", "1f1b", "--only", "chimera")
    done = hocket("choose", *arguments, "--layers", "8", "--activation", "1MiB", "--json")
    found = json.loads(done.stdout)["simulated"]
    assert found[0]["step_s"] == min(each["step_s"] for each in found)
    assert {each["name"] for each in found} <= {"1f1b", "chimera"}
    model = tmp_path / "model.json"
    model.write_text(json.dumps({"num_layers": 4, "forward_s": [1e-3, 1e-3, 2e-3, 1e-3]}))
    assert "1f1b" in hocket("choose", *arguments, "--model", str(model)).stdout
    model.write_text(json.dumps({"num_layers": 4, "forwards": 1}))
    done = hocket("choose", *arguments, "--model", str(model))
    assert (done.returncode, "forwards" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("show", "mine"), ("'mine'", "1f1b", "chimera")),
        (("show", "absent.txt"), ("absent.txt", NO_SUCH_FILE)),
        (("show", "chimera", "-n", "3"), ("chimera", "3")),
        (("show", "1f1b", "-m", "0"), ("micro-batches", "1", "0")),
        (("show", "chimera", "--param", "num_pairs"), ("'num_pairs'", "num_pairs=2")),
        (("show", "chimera", "--param", "mode=fast"), ("mode", "concatenation", "doubling", "'fast'")),
        (("show", "1f1b", "--param", "v=2"), ("1f1b", "'v'")),
        (("simulate", "1f1b", "--cost", "F"), ("'F'", "B=2")),
        (("simulate", "1f1b", "--cost", "Q=1"), "'Q'"),
        (("simulate", "1f1b", "-n", "4", "--cost", "F=1,2"), ("F", "4", "2")),
        (("simulate", "1f1b", "chimera", "--param", "num_pairs=2"), "--param"),
        (("simulate", "1f1b", "--sync", "soon"), ("lazy", "eager", "eager-opt", "'soon'")),
        (("validate", "1f1b", "--buffering", "some"), ("buffering", '"tagged"', "'some'")),
        (("draw", "1f1b", "-o", "mine.gif"), ("mine.gif", ".png")),
        (("convert", "1f1b", "-o", "mine.yaml"), ("mine.yaml", ".csv", ".json", ".txt")),
        (("choose", "--only", "1f1b", "--limit", "1", "--activation", "1MiB"), "1 bytes"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], names: str | tuple[str, ...]) -> None:
    done = hocket(*arguments)
    assert done.returncode == 2
    assert_names(done.stderr, "hocket pipeline", *((names,) if isinstance(names, str) else names))
    assert "Traceback" not in done.stderr
