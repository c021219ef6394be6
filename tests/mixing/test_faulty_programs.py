"""Random programs with faults: no hang, no wrong result, nothing left behind, and the survivors continue."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from ..backends import WITH_COLLECTIVES
from ..program import hocket
from ..tier import sample

IS_SOAK = bool(os.environ.get("HOCKET_SOAK"))
NUM_SEEDS = 1000 if IS_SOAK else 24
SCRIPT = Path(__file__).with_name("faulty_rank.py")
# Most over shared memory alone, where a job starts in half a second.
LIBRARIES = (["shm"],) * 10 + (["shm", "mpi"], WITH_COLLECTIVES)


def make_plan(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    size, steps = rng.choice((2, 2, 3, 3, 4)), rng.randint(3, 30)
    victims = rng.sample(range(size), rng.choice([1] * 4 + [max(1, size - 2)]))
    hows = ["kill", "kill", "kill", "raise", "leave", "abort"] if rng.random() < 0.95 else ["stop"]
    faults = {victim: (rng.choice(hows), rng.randrange(steps)) for victim in victims}
    is_stopped = "stop" in hows
    return {
        "seed": seed,
        "size": size,
        "backends": LIBRARIES[seed % len(LIBRARIES)] if not is_stopped else ["shm"],
        "steps": steps,
        "faults": faults,
        "timeout": 1.0 if is_stopped else 30.0,
        "progress": rng.choice(["caller", "thread"]),
    }


@pytest.mark.timeout(100)
@pytest.mark.parametrize("seed", sample(range(NUM_SEEDS), 5))
def test_survivors_go_on(tmp_path: Path, seed: int) -> None:
    plan = make_plan(seed)
    memory = set(os.listdir("/dev/shm"))
    job = hocket(
        *("run", "-n", str(plan["size"]), "--keep-going", str(SCRIPT), json.dumps(plan)),
        folder=tmp_path,
        environment=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout_s=90,
    )
    report = f"{plan}\n{job.stdout}{job.stderr}"
    left = [rank for rank in range(plan["size"]) if plan["faults"].get(rank, ("abort",))[0] == "abort"]
    assert sorted(job.stdout.split("\n")[:-1]) == [f"{rank} done" for rank in left], report
    assert set(os.listdir("/dev/shm")) <= memory, report
