"""Every short example runs and prints what it is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..program import run_python
from ..tier import full

EXAMPLES = Path(__file__).parents[2] / "examples"

CASES = {
    "bench.py": (None, "times the time of MPICH"),
    "all_reduce.py": (4, "ranks of my pair add up to 5"),
    "messages.py": (3, "rank 2: my token came home"),
    "measure.py": (2, "ratio"),
    "pipeline.py": (None, "MissingAction: rank 0, action 3"),
    "simulate.py": (None, "100 Gbit/s:   100 ms a step"),
    "train.py": (2, "of 1,000 digits never seen before, 9"),
    "spawn.py": (None, "both ranks say the same: True"),
}
LONG = {"bench.py", "simulate.py", "train.py"}  # ten seconds and more; their rooms test what they show


def test_all_are_listed() -> None:
    models = {"gpt.py", "moe.py", "dlrm.py"}  # see test_models.py
    trainings = {"train_gpt.py", "train_resnet.py", "train_deep.py"}  # see test_trainings.py
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(CASES) | models | trainings


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", [pytest.param(name, marks=full) if name in LONG else name for name in CASES])
def test_example(name: str, tmp_path: Path) -> None:
    num_ranks, expected = CASES[name]
    launcher = ["-m", "hocket.cli", "run", "-n", str(num_ranks)] if num_ranks else []
    run = run_python(*launcher, str(EXAMPLES / name), timeout_s=100, folder=tmp_path)
    assert run.returncode == 0, run.stderr
    assert expected in run.stdout
