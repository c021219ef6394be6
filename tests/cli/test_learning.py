"""`hocket run --learn` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..naming import assert_names
from .command import hocket

pytestmark = pytest.mark.timeout(150)

PROGRAM = """
import numpy as np
import hocket as hk
comm = hk.init(backends=["shm"], {options})
x = np.ones(1024, np.float32)
for _ in range(3000):
    comm.all_reduce(x, "max")
comm.finalize()
"""


def test_what_was_learned_is_kept_for_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOCKET_LEARN", raising=False)
    (tmp_path / "program.py").write_text(PROGRAM.format(options=""))
    path = tmp_path / "cache" / "hocket" / "table.json"
    done = hocket(tmp_path, "run", "-n", "2", "program.py")
    assert done.returncode == 0 and not path.exists()
    done = hocket(tmp_path, "run", "-n", "2", "--learn", "program.py")
    assert done.returncode == 0, done.stderr
    content = json.loads(path.read_text())
    assert content["rules"] and {row["source"] for row in content["rows"]} == {"run"}
    monkeypatch.setenv("HOCKET_LEARN", "1")  # and choose by that table
    done = hocket(tmp_path, "run", "-n", "2", "program.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "names"),
    [("deterministic=True", ()), ('policy=hk.Policy.fixed({"*": "shm"})', ("UserWarning", "HOCKET_LEARN"))],
)
def test_programs_that_settle_choices_themselves(tmp_path: Path, options: str, names: tuple[str, ...]) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(options=options))
    done = hocket(tmp_path, "run", "-n", "2", "--learn", "program.py")
    assert done.returncode == 0, done.stderr
    assert_names(done.stderr, *names)
    assert not (tmp_path / "cache").exists()


def test_wrong_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(options=""))
    monkeypatch.setenv("HOCKET_LEARN", "yes")
    done = hocket(tmp_path, "run", "-n", "2", "program.py")
    assert done.returncode != 0
    assert_names(done.stderr.splitlines()[-1], "InvalidArgument", "HOCKET_LEARN", "1", "0", "'yes'")
