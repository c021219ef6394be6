"""Ranks that die, stop or fail at random places, from seeds."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..naming import assert_names, names_value
from ..tier import is_full, sample
from .summary_lines import ranks_of

pytestmark = pytest.mark.timeout(120)

NUM_SEEDS = 100 if os.environ.get("HOCKET_SOAK") else 20
WITHIN_S = 2.0
GONE_WITHIN_S = 8.0
SCENARIO = (Path(__file__).parent / "scenario.py").read_text()
PLACES = (
    "init", "meeting", "small", "large", "p2p", "async", "split", "split-open", "group", "finalize", "outside",
)  # fmt: skip
WAYS = ("kill", "kill", "raise", "exit", "stop")


def make_plan(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    size = rng.randint(2, 4)
    operations = ["barrier", "all_gather", "ring", "1", "5000", "700001"]
    return {
        "size": size,
        "victim": rng.randrange(size),
        "how": rng.choice(WAYS),
        "where": PLACES[seed % len(PLACES)],
        "late": rng.random() < 0.5,
        "progress": rng.choice(["caller", "thread"]),
        "before": rng.choices(operations, k=rng.randint(0, 6)),
        "members": rng.sample(range(size), size),
        "shared": rng.random() < 0.5,
    }


@pytest.mark.parametrize("seed", sample(range(NUM_SEEDS), 6))
def test_the_others_raise_in_time_and_nothing_is_left(run_job: Callable[..., Any], seed: int) -> None:
    plan = make_plan(seed)
    job = run_job(SCENARIO, plan["size"], json.dumps(plan))
    told = f"{plan}\n{job.stdout}\n{job.stderr}\n{job.notes()}"
    survivors = [rank for rank in range(plan["size"]) if rank != plan["victim"]]
    assert job.notes("strike"), told
    strike_s = job.notes("strike")[0]["time_s"]
    errors = {note["rank"]: note for note in job.notes("error")}
    assert sorted(errors) == survivors, told
    for error in errors.values():
        check_error(plan, error, strike_s, told)
    check_records(plan, job.records(), survivors, told)
    check_output(plan, job.stderr, survivors, told)
    # The first failure that the launcher can see: of a stopped rank that is the first survivor's.
    first_s = min(error["time_s"] for error in errors.values()) if plan["how"] == "stop" else strike_s
    if plan["where"] in ("init", "meeting"):
        first_s = strike_s if plan["how"] != "stop" else first_s
    assert job.ended_s - first_s < GONE_WITHIN_S, told


def check_error(plan: dict[str, Any], error: dict[str, Any], strike_s: float, told: str) -> None:
    since_s = error["time_s"] - max(strike_s, error["entered_s"])
    number = plan["members"].index(plan["victim"]) if plan["where"] == "group" else plan["victim"]
    assert error["ranks"] == ([] if error["type"] == "Aborted" else [number]), told
    if plan["where"] in ("init", "meeting"):
        assert error["type"] == "CommTimeout", told
        assert f"rank {plan['victim']} never arrived" in error["text"], told
        # Rank 0 gives up at 2 s; the others wait a moment longer for what it says.
        assert error["time_s"] - error["entered_s"] < 2 + 1 + WITHIN_S, told
    elif plan["how"] == "stop":
        assert error["type"] == "CommTimeout", told
        assert since_s < 2 + WITHIN_S, told
    elif plan["how"] == "kill":
        assert error["type"] == "PeerFailure", told
        assert "died" in error["text"], told
        assert since_s < WITHIN_S, told
    else:
        # Who leaves in order says so; with an operation in flight it gives the communicator up. sys.exit() waits up to
        # 1 s for what is in flight.
        assert error["type"] in ("PeerFailure", "Aborted"), told
        assert "left" in error["text"] or "finalized" in error["text"], told
        assert since_s < WITHIN_S + (1 if plan["how"] == "exit" else 0), told


def check_records(plan: dict[str, Any], records: dict[int, Any], survivors: list[int], told: str) -> None:
    if plan["where"] in ("init", "meeting"):
        assert records == {}, told  # there was no communicator yet
        return
    assert set(survivors) <= set(records), told
    for rank in survivors:
        record = records[rank]
        assert (record["format"], record["rank"], record["size"]) == ("hocket-failure-1", rank, plan["size"])
        assert record["error"]["type"] in ("PeerFailure", "CommTimeout", "Aborted"), told
        assert len(record["records"]) >= len(plan["before"]), told


def check_output(plan: dict[str, Any], stderr: str, survivors: list[int], told: str) -> None:
    lines = [line for line in stderr.splitlines() if not line.startswith("hocket: rank")]
    stalls = len(stderr.splitlines()) - len(lines)
    victim = plan["victim"]
    if plan["how"] == "stop":
        # No rank has a cause of its own; the first that gave up is shown whole.
        assert lines[1] == "Traceback (most recent call last):", told
        assert any(names_value(line, f"rank {victim}") and names_value(line, "SIGKILL") for line in lines), told
    else:
        assert_names(lines[0], f"rank {victim}", *{"kill": ["SIGKILL"], "raise": [], "exit": ["3"]}[plan["how"]])
        assert sorted(rank for line in lines[1:] for rank in ranks_of(line)) == sorted(survivors), told
    assert stderr.count("Traceback") == (plan["how"] in ("stop", "raise")), told
    # One report for each wait that came to half of its time, and those are the waits that time out.
    assert stalls <= len(survivors), told
    if plan["how"] == "stop":
        assert stalls >= 1, told


@pytest.mark.parametrize("seed", range(9 if os.environ.get("HOCKET_SOAK") else 2 if is_full() else 1))
def test_nothing_is_left_under_torchrun(jobs: Any, seed: int) -> None:
    plan = make_plan(1000 + seed) | {"how": ("kill", "raise", "exit")[seed % 3]}
    job = jobs.start(SCENARIO, plan["size"], json.dumps(plan), torchrun=True).finish()
    assert job.return_code != 0
    assert job.notes("strike")
