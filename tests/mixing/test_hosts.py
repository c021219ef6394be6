"""Mixing between hosts: this machine under two names; ranks share memory only with ranks of their own host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..program import run_on_two_hosts
from ..tier import full, is_full

RANK_SCRIPT = Path(__file__).with_name("hosts_rank.py")
NUM_SEEDS = 1000 if os.environ.get("HOCKET_SOAK") else 40 if is_full() else 10
LIMIT_S = 3500 if os.environ.get("HOCKET_SOAK") else 200


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("num_local", [pytest.param(1, marks=full), 2])
def test_random_programs(num_local: int) -> None:
    arguments = (str(num_local * 10**5), str(NUM_SEEDS))
    output = run_on_two_hosts(num_local, RANK_SCRIPT, *arguments, limit_s=LIMIT_S, OMP_NUM_THREADS="1")
    assert output.count("all programs went through") == 2 * num_local
