"""Short runs of the examples that train pipelines: each reaches the result that it prints."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket.observe import findings, open_run

from ..program import hocket
from ..tier import full, is_full

EXAMPLES = Path(__file__).parents[2] / "examples"

# Arguments, a pattern of the printed result, and a condition on its numbers.
CASES: dict[str, tuple[list[str], str, Callable[..., bool]]] = {
    "train_gpt": (
        ["150" if is_full() else "40"],
        r"held-out text: ([\d.]+) bits per byte; entropy of single bytes: ([\d.]+)",
        lambda learned, entropy: learned < entropy - 0.4,  # the text depends on the Python version
    ),
    "train_resnet": (["1"], r"held-out digits: ([\d.]+)%", lambda percent: percent > 50),
    "train_deep": ([], r"3,339 layers, .* loss ([\d.]+), then ([\d.]+)", lambda first, last: last < first - 1),
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "name", ["train_gpt", *(pytest.param(name, marks=full) for name in ("train_resnet", "train_deep"))]
)
def test_training(name: str, tmp_path: Path) -> None:
    arguments, printed, holds = CASES[name]
    run = hocket("run", "-n", "2", str(EXAMPLES / f"{name}.py"), *arguments, timeout_s=220, folder=tmp_path)
    assert run.returncode == 0, run.stderr
    found = re.search(printed, run.stdout)
    assert found is not None, run.stdout
    assert holds(*map(float, found.groups())), found[0]


@full
@pytest.mark.timeout(240)
def test_the_slow_rank_of_the_observed_training_is_found(tmp_path: Path) -> None:
    training = [
        "hocket",
        "run",
        "-n",
        "2",
        str(EXAMPLES / "observed_training.py"),
        "--steps",
        "120",
        "--slow-rank",
        "1",
    ]
    run = hocket("observe", "run", "--output", "slow", "--", *training, timeout_s=220, folder=tmp_path)
    assert run.returncode == 0, run.stderr
    found = [each for each in findings(open_run(tmp_path / "slow")) if each.kind == "straggler"]
    assert found
    assert "rank 1" in found[0].text and "augment" in found[0].text
