"""torch.distributed with hocket for the CPU and NCCL for the GPU in one group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(200)


def test_one_group_for_both_devices(tmp_path: Path) -> None:
    script = Path(__file__).with_name("both_devices.py")
    results = {}
    for config in ("cpu:gloo,cuda:nccl", "cpu:hocket,cuda:nccl"):
        folder = tmp_path / config.replace(",", "-").replace(":", "-")
        folder.mkdir()
        run = subprocess.run(
            [str(Path(sys.executable).with_name("hocket")), "run", "-n", "2", str(script), config, str(folder)],
            env=os.environ | {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"},
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
        results[config] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    theirs, ours = results.values()
    assert ours == theirs
