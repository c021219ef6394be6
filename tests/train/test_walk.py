"""A call of `fit` passes down through the layers of the package, and returns once."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

WALK = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "follow_model.py"))


@pytest.mark.parametrize(
    "make",
    [lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), WALK["Traced"]],
    ids=["chain", "traced"],
)
def test_the_model_enters_each_file_once(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    files = WALK["walk_of"](make())
    assert files[0] == "loop/fit.py" and len(files) > 5
    assert sorted(files) == sorted(set(files))
