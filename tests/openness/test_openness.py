"""An addition needs one more file in a package and no other edit: one toy of each kind, in a separate program.

The files are in `toys`. Each is copied into an empty folder, which the program first appends to the package's
``__path__`` (`driver.py`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from hocket.tune import Machine, Row, Table, save_table

from ..program import run_python

HERE = Path(__file__).parent
PACKAGES = {
    "backend": "hocket.backends",
    "kind": "hocket.pipeline.kinds",
    "schedule": "hocket.pipeline.schedules",
    "algorithm": "hocket.collectives.families",
    "verb": "hocket.cli",
    "benchmark": "hocket.bench.families",
    "format": "hocket.bench.formats",
    "exporter": "hocket.tune.exporters",
    "result": "hocket.observe.serve.results",
}
DEADLINE_S = 50.0

Run: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Return run(*arguments, num_ranks=0, code=0), which runs the driver with the toy in the test's name."""
    toy = request.function.__name__.split("_")[2]
    folder = tmp_path / "more"
    folder.mkdir()
    shutil.copy(HERE / "toys" / f"{toy}.py", folder / "toy.py")
    driver = [str(HERE / "driver.py"), PACKAGES[toy], str(folder)]

    def run_driver(*arguments: str, num_ranks: int = 0, code: int = 0) -> subprocess.CompletedProcess[str]:
        start = ["-m", "hocket.cli", "run", "-n", str(num_ranks)] if num_ranks else []
        done = run_python(*start, *driver, *arguments, folder=tmp_path, timeout_s=DEADLINE_S)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run_driver


def _json(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout.strip().splitlines()[-1])


def _are_in_order(names: list[str], *some: str) -> bool:
    return [name for name in names if name in some] == [*some]


def test_a_backend_appears_everywhere(run: Run) -> None:
    declared = _json(run("declared"))
    assert _are_in_order(declared["links"], "shm", "mpi", "toy", "gloo")
    assert _are_in_order(declared["between_hosts"], "mpi", "toy", "gloo")
    assert "toy" in declared["targets"] and "toy" in declared["tested"] and declared["quickest"] == "toy"
    assert declared["third_party"] == []
    (finding,) = [each for each in _json(run("hocket", "doctor", "--json"))["findings"] if each["about"] == "toy"]
    assert finding["state"] == "note" and finding["remedy"]
    explained = _json(run("hocket", "explain", "all_reduce", "1MiB", "--json"))
    assert _are_in_order([each["backend"] for each in explained["candidates"]], "shm", "mpi", "toy")


def test_a_backend_carries_operations_and_is_measured(run: Run) -> None:
    result = _json(run("backend", num_ranks=2))
    assert result["sum"] == 3 and result["backend"] == "toy" and result["backends"]["toy"] == "a toy"
    assert result["explained"] == ["shm", "toy"]
    assert result["rows"] == [["shm", False], ["shm", True], ["toy", False], ["toy", True]]


def test_a_kind_is_listed_and_simulated(run: Run, tmp_path: Path) -> None:
    kinds = _json(run("hocket", "pipeline", "list", "--kinds", "--json"))["kinds"]
    assert "TOY" in {each["kind"] for each in kinds}
    table = tmp_path / "table.txt"
    head = "hocket pipeline schedule, version 1\nname: mine\nmicro-batches: 2\npipe 0: 0\n"
    table.write_text(f"{head}rank 0: 0F0 0TOY0 0F1 0TOY1 0B0 0B1\n")
    (simulated,) = _json(run("hocket", "pipeline", "simulate", str(table), "--cost", "TOY=5", "--json"))["simulated"]
    assert simulated["makespan_s"] == pytest.approx(2 * (1 + 5 + 2) * 1e-3)


def test_a_kind_is_executed(run: Run) -> None:
    result = _json(run("train", "gpipe", "TOY"))
    assert result["are_correct"] and all(result["are_correct"])
    assert result["noted"] == [[0, 0], [0, 1], [0, 2]] * 2  # a training step, then only forward passes


def test_a_kind_replaces_another(run: Run) -> None:
    """Checks, recomputation, gradient sums and dependent ranks accept it as the backward pass."""
    result = _json(run("train", "gpipe", "TOY", "TOY_B", num_ranks=2))
    assert result["are_correct"] and all(result["are_correct"])


def test_a_schedule_is_listed_and_simulated(run: Run) -> None:
    schedules = _json(run("hocket", "pipeline", "list", "--json"))["schedules"]
    assert "toy" in {each["name"] for each in schedules}
    (simulated,) = _json(run("hocket", "pipeline", "simulate", "toy", "-n", "2", "-m", "4", "--json"))["simulated"]
    assert simulated["bubble_sync"] == pytest.approx(0.5)


def test_a_schedule_is_executed(run: Run) -> None:
    are_correct = _json(run("train", "toy"))["are_correct"]
    assert are_correct and all(are_correct)


def test_an_algorithm_is_listed_and_named_by_a_call(run: Run) -> None:
    assert "toy" in run("hocket", "collectives", "list", "broadcast").stdout
    result = _json(run("algorithm", num_ranks=2))
    assert result["values"] == [2.0] and result["algorithm"].startswith("toy")


def test_a_verb_is_in_the_help_and_runs(run: Run) -> None:
    assert "toy" in run("hocket", "--help").stdout.split()
    assert run("hocket", "toy", "word", code=3).stdout == "word\n"
    run("hocket", "toy", code=2)


def test_a_benchmark_is_listed(run: Run) -> None:
    assert "toys:" in run("hocket", "bench", "list").stdout.splitlines()


def test_a_benchmark_is_measured(run: Run) -> None:
    arguments = ("hocket", "bench", "run", "toy", "--budget", "0.2", "--ci", "0.5", "--json")
    (result,) = _json(run(*arguments, num_ranks=2))["results"]
    assert result["benchmark"] == "toy" and result["value"] > 0


def test_a_format_is_listed_and_written(run: Run) -> None:
    assert "toy" in run("hocket", "bench", "list").stdout.replace(",", " ").split()
    arguments = ("hocket", "bench", "run", "barrier", "--budget", "0.2", "--ci", "0.5", "--format", "toy")
    assert run(*arguments, num_ranks=2).stdout == "1 results\n"


def test_an_exporter_is_listed_and_writes(run: Run, tmp_path: Path) -> None:
    assert "toy" in run("hocket", "tune", "export", "--formats").stdout.split()
    row = Row("all_reduce", "full", 2, 64, "shm", False, 1e-6, 1e-6, 1e-6)
    save_table(Table(Machine("a processor", 2, 1, {"shm": "shared memory"}), (row,)), tmp_path / "table.json")
    done = run("hocket", "tune", "export", "--to", "toy", str(tmp_path / "table.json"))
    assert done.stdout == "1 rows\n"


def test_a_result_is_opened(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    for name, content in (("toy.json", {"format": "toy, version 1", "number": 21}), ("other.json", {})):
        (tmp_path / name).write_text(json.dumps(content))
    assert "(hocket toy)" in run("hocket", "open", "other.json", code=2).stderr
    assert _json(run("opened", "toy.json")) == {"toy.json": {"doubled": 42}}
