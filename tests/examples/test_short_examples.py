"""Every short example runs and prints its result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..program import run_python
from ..tier import full

EXAMPLES = Path(__file__).parents[2] / "examples"

CASES = {
    "bench.py": (None, "times as long as MPICH"),
    "all_reduce.py": (4, "the ranks of my pair sum to 5"),
    "messages.py": (3, "rank 2: my token is back"),
    "measure.py": (2, "ratio"),
    "pipeline.py": (None, "MissingAction: rank 0, action 3"),
    "simulate.py": (None, "100 Gbit/s:   100 ms per step"),
    "train.py": (2, "accuracy on 1,000 held-out digits: 9"),
    "engines.py": (2, "parameter-server-async: 9"),
    "sparse_sum.py": (2, "1000 of 100000 elements a step"),
    "lightning_ok_topk.py": (2, "bucket 0, 19210 elements: compressed"),
    "trainer_ok_topk.py": (2, "elements: compressed"),
    "dask_transpose.py": (None, "all_to_all: "),
    "dask_merge.py": (3, "all_to_all: "),
    "dask_search.py": (None, "the best strength is"),
    "spawn.py": (None, "both ranks have the same result: True"),
}
# They take 10 s or more; other tests show what they do.
LONG = {"bench.py", "engines.py", "simulate.py", "train.py", "lightning_ok_topk.py", "trainer_ok_topk.py"}
NEEDS = {"lightning_ok_topk.py": ("lightning", "sklearn"), "trainer_ok_topk.py": ("transformers", "accelerate")}
NEEDS |= dict.fromkeys(("dask_transpose.py", "dask_merge.py", "dask_search.py"), ("distributed",))
OPTIONS = {"dask_merge.py": ["--dask"]}  # of `hocket run`
FALLS = {"lightning_ok_topk.py": 1.0, "trainer_ok_topk.py": 1.0}  # by how much the printed loss falls at least


def test_all_are_listed() -> None:
    models = {"gpt.py", "moe.py", "dlrm.py"}  # see test_models.py
    trainings = {"train_gpt.py", "train_resnet.py", "train_deep.py", "observed_training.py"}  # see test_trainings.py
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(CASES) | models | trainings


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", [pytest.param(name, marks=full) if name in LONG else name for name in CASES])
def test_example(name: str, tmp_path: Path) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package, reason=f"{name} needs {package}: pip install {package}")
    num_ranks, expected = CASES[name]
    launcher = ["-m", "hocket.cli", "run", "-n", str(num_ranks), *OPTIONS.get(name, [])] if num_ranks else []
    run = run_python(*launcher, str(EXAMPLES / name), timeout_s=100, folder=tmp_path)
    assert run.returncode == 0, run.stderr
    assert expected in run.stdout
    if name in FALLS:
        found = re.search(r"loss ([\d.]+) at the start, ([\d.]+) after", run.stdout)
        assert found is not None, run.stdout
        assert float(found[2]) < float(found[1]) - FALLS[name], found[0]
