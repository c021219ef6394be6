"""Mixing between hosts: this machine under two names, whose ranks share memory only with those of their own host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

RANK_SCRIPT = Path(__file__).with_name("hosts_rank.py")
NUM_SEEDS = 1000 if os.environ.get("HOCKET_SOAK") else 40
LIMIT_S = 3500 if os.environ.get("HOCKET_SOAK") else 200


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("num_local", [1, 2])
def test_random_programs(num_local: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "hocket.cli", "run", "-n", str(num_local), "--nnodes", "2"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    launchers = [
        subprocess.Popen(
            [*command, "--node-rank", str(host), str(RANK_SCRIPT), str(num_local * 10**5), str(NUM_SEEDS)],
            env={**os.environ, "HOCKET_HOST": f"host-{host}", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host in range(2)
    ]
    try:
        outputs = [launcher.communicate(timeout=LIMIT_S)[0] for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.terminate()  # ends its ranks
            launcher.wait()
    assert [launcher.returncode for launcher in launchers] == [0, 0], "".join(outputs)
    assert "".join(outputs).count("all programs went through") == 2 * num_local
