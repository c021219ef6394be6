"""The examples that train through pipelines learn what they say; short runs of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ..program import hocket
from ..tier import full, is_full

EXAMPLES = Path(__file__).parents[2] / "examples"

# Arguments, what is printed, and what its numbers have to be.
CASES: dict[str, tuple[list[str], str, Callable[..., bool]]] = {
    "train_gpt": (
        ["150" if is_full() else "40"],
        r"seen before: ([\d.]+) bits a byte; by how often each comes ([\d.]+)",
        lambda learned, guessed: learned < guessed - 0.4,  # the text is the library of the Python that runs
    ),
    "train_resnet": (["1"], r"before, ([\d.]+)% are read right", lambda percent: percent > 50),
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
