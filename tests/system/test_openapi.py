"""The server's interface as its OpenAPI description says it, against requests that schemathesis makes up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..observe.fabricated_run import MS, FakeRank, Op, fabricate
from ..observe.stored_rows import served
from ..tier import is_full

pytestmark = pytest.mark.timeout(300)
PACKAGE = "schemathesis==4.32.5"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), PACKAGE]
    subprocess.run(install, check=True, timeout=240)
    return folder


def test_no_request_makes_the_server_fail(packages: Path, tmp_path: Path) -> None:
    with served(tmp_path / "store") as (process, client):
        ranks = [FakeRank(rank, [Op("all_reduce", step, step * MS, step * MS + 10) for step in range(9)])
                 for rank in range(2)]  # fmt: skip
        client.push(fabricate(ranks), "run-1")
        num_examples = "6" if is_full() else "3"
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{client._url}/v1/openapi.json", "--header",
            f"Authorization: {client._headers['authorization']}", "--checks",
            "not_a_server_error,status_code_conformance,response_schema_conformance", "--max-examples",
            num_examples, "--seed", "1", "--phases", "examples,coverage,fuzzing", "--exclude-path-regex", "/live$",
            "--request-timeout", "20",
        ]  # fmt: skip
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(packages)}, capture_output=True, text=True, timeout=280,
            check=False, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert process.poll() is None
        assert client.ask("/v1/runs/run-1")["num_processes"] == 2
