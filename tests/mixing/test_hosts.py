"""Mixing between hosts: this machine under two names; ranks share memory only with ranks of their own host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hocket.reserved_port import ReservedPort

from ..program import start_python
from ..tier import full, is_full

RANK_SCRIPT = Path(__file__).with_name("hosts_rank.py")
NUM_SEEDS = 1000 if os.environ.get("HOCKET_SOAK") else 40 if is_full() else 10
LIMIT_S = 3500 if os.environ.get("HOCKET_SOAK") else 200


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("num_local", [pytest.param(1, marks=full), 2])
def test_random_programs(num_local: int) -> None:
    port = ReservedPort()
    command = ["-m", "hocket.cli", "run", "-n", str(num_local), "--nnodes", "2"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port.number)]
    launchers = [
        start_python(
            *(*command, "--node-rank", str(host), str(RANK_SCRIPT), str(num_local * 10**5), str(NUM_SEEDS)),
            folder=Path.cwd(),
            environment={**os.environ, "HOCKET_HOST": f"host-{host}", "OMP_NUM_THREADS": "1"},
        )
        for host in range(2)
    ]
    try:
        outputs = ["".join(launcher.communicate(timeout=LIMIT_S)) for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.terminate()  # ends its ranks
            launcher.wait()
        port.close()
    assert [launcher.returncode for launcher in launchers] == [0, 0], "".join(outputs)
    assert "".join(outputs).count("all programs went through") == 2 * num_local
