"""A rank of a pipeline dies, stops or fails during a training step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..naming import Given, assert_names
from ..tier import sample

pytestmark = pytest.mark.timeout(120)

SCRIPT = (Path(__file__).parent / "training_rank.py").read_text()
TIMEOUT_S = 2.0
WITHIN_S = 2.0


@pytest.mark.parametrize(
    ("how", "schedule"),
    sample([("kill", "1f1b"), ("kill", "zb-v"), ("kill", "chimera"), ("stop", "zb-v"), ("raise", "1f1b")], 2),
)
def test_the_others_raise_in_time_and_name_the_victim(run_job: Callable[..., Any], how: str, schedule: str) -> None:
    victim = 1 if schedule == "chimera" else 2
    size = 2 if schedule == "chimera" else 3
    job = run_job(SCRIPT, size, how, schedule, str(victim))
    details = f"{job.stdout}\n{job.stderr}\n{job.notes()}"
    survivors = [rank for rank in range(size) if rank != victim]
    (failure,) = job.notes("failure")
    errors = {each["rank"]: each for each in job.notes("error") if each["rank"] != victim}
    assert sorted(errors) == survivors, details
    limit_s = WITHIN_S + (TIMEOUT_S if how == "stop" else 0)
    for each in errors.values():
        assert each["time_s"] - failure["time_s"] < limit_s, details
        if how == "raise":
            assert each["type"] == "Aborted", details
            assert_names(each["text"], Given("out of luck"))
        else:
            # A rank that waited for the victim names it; a third rank is notified by that rank, or times out, too.
            assert each["type"] in ("PeerFailure" if how == "kill" else "CommTimeout", "Aborted"), details
            assert all(word in each["text"] for word in ("micro-batch", "action")), details
    assert any(f"rank {victim}" in each["text"] for each in errors.values()), details
    for each in job.notes("again"):
        assert each["type"] == "InvalidState", details
        if each["rank"] in errors:
            assert errors[each["rank"]]["text"] in each["text"], details  # the reason why no further step is possible
