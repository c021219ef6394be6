"""Keras' own tests have the same outcomes with hocket's `fit` as with Keras' `fit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..program import run_python

FILES = ("callbacks", "models/functional_test.py", "models/model_test.py", "models/sequential_test.py",
         "trainers/trainer_test.py")  # fmt: skip


@pytest.mark.timeout(200)
def test_outcomes_are_those_with_keras(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    for who in ("keras", "hocket"):
        folder = tmp_path / who
        folder.mkdir()
        script = Path(__file__).with_name("kerass_own.py")
        run = run_python(str(script), who, str(folder), *FILES, timeout_s=90)
        assert run.returncode == 0, run.stderr
        found[who] = json.loads(run.stdout.splitlines()[-1])
    wanted, ours = found["keras"]["outcomes"], found["hocket"]["outcomes"]
    assert sum(each == "passed" for each in wanted.values()) > 150
    assert found["hocket"]["trained"] > 60 and found["hocket"]["refused"] < 30
    assert {name: ours.get(name) for name in wanted if ours.get(name) != wanted[name]} == {}
