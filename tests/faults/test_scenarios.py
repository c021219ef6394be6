"""Ranks that die, stop or fail at random points, chosen by seeds."""

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
    "init", "bootstrap", "small", "large", "p2p", "async", "split", "split-open", "group", "finalize", "outside",
)  # fmt: skip
FAILURES = ("kill", "kill", "raise", "exit", "stop")


def make_plan(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    size = rng.randint(2, 4)
    operations = ["barrier", "all_gather", "ring", "1", "5000", "700001"]
    return {
        "size": size,
        "victim": rng.randrange(size),
        "how": rng.choice(FAILURES),
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
    details = f"{plan}\n{job.stdout}\n{job.stderr}\n{job.notes()}"
    survivors = [rank for rank in range(plan["size"]) if rank != plan["victim"]]
    assert job.notes("failure"), details
    failure_s = job.notes("failure")[0]["time_s"]
    errors = {note["rank"]: note for note in job.notes("error")}
    assert sorted(errors) == survivors, details
    for error in errors.values():
        check_error(plan, error, failure_s, details)
    check_records(plan, job.records(), survivors, details)
    check_output(plan, job.stderr, survivors, details)
    # The first failure that the launcher can detect: for a stopped rank, that of the first survivor.
    first_s = min(error["time_s"] for error in errors.values()) if plan["how"] == "stop" else failure_s
    if plan["where"] in ("init", "bootstrap"):
        first_s = failure_s if plan["how"] != "stop" else first_s
    assert job.ended_s - first_s < GONE_WITHIN_S, details


def check_error(plan: dict[str, Any], error: dict[str, Any], failure_s: float, details: str) -> None:
    since_s = error["time_s"] - max(failure_s, error["entered_s"])
    number = plan["members"].index(plan["victim"]) if plan["where"] == "group" else plan["victim"]
    assert error["ranks"] == ([] if error["type"] == "Aborted" else [number]), details
    if plan["where"] in ("init", "bootstrap"):
        assert error["type"] == "CommTimeout", details
        assert f"rank {plan['victim']} never arrived" in error["text"], details
        # Rank 0 times out after 2 s; the others wait a moment longer for its message.
        assert error["time_s"] - error["entered_s"] < 2 + 1 + WITHIN_S, details
    elif plan["how"] == "stop":
        assert error["type"] == "CommTimeout", details
        assert since_s < 2 + WITHIN_S, details
    elif plan["how"] == "kill":
        assert error["type"] == "PeerFailure", details
        assert "died" in error["text"], details
        assert since_s < WITHIN_S, details
    else:
        # A rank that leaves in an orderly way notifies the others; with an operation in flight it aborts the
        # communicator. sys.exit() waits up to 1 s for operations in flight.
        assert error["type"] in ("PeerFailure", "Aborted"), details
        assert "left" in error["text"] or "finalized" in error["text"], details
        assert since_s < WITHIN_S + (1 if plan["how"] == "exit" else 0), details


def check_records(plan: dict[str, Any], records: dict[int, Any], survivors: list[int], details: str) -> None:
    if plan["where"] in ("init", "bootstrap"):
        assert records == {}, details  # no communicator existed yet
        return
    assert set(survivors) <= set(records), details
    for rank in survivors:
        record = records[rank]
        assert (record["format"], record["rank"], record["size"]) == ("hocket-failure-1", rank, plan["size"])
        assert record["error"]["type"] in ("PeerFailure", "CommTimeout", "Aborted"), details
        assert len(record["records"]) >= len(plan["before"]), details


def check_output(plan: dict[str, Any], stderr: str, survivors: list[int], details: str) -> None:
    lines = [line for line in stderr.splitlines() if not line.startswith("hocket: rank")]
    stalls = len(stderr.splitlines()) - len(lines)
    victim = plan["victim"]
    if plan["how"] == "stop":
        # No rank has an error of its own; the traceback of the first that timed out is shown.
        assert lines[1] == "Traceback (most recent call last):", details
        assert any(names_value(line, f"rank {victim}") and names_value(line, "SIGKILL") for line in lines), details
    else:
        assert_names(lines[0], f"rank {victim}", *{"kill": ["SIGKILL"], "raise": [], "exit": ["3"]}[plan["how"]])
        assert sorted(rank for line in lines[1:] for rank in ranks_of(line)) == sorted(survivors), details
    assert stderr.count("Traceback") == (plan["how"] in ("stop", "raise")), details
    # One report for each wait that reached half of its timeout; only waits that time out do.
    assert stalls <= len(survivors), details
    if plan["how"] == "stop":
        assert stalls >= 1, details


@pytest.mark.parametrize("seed", range(9 if os.environ.get("HOCKET_SOAK") else 2 if is_full() else 1))
def test_nothing_is_left_under_torchrun(jobs: Any, seed: int) -> None:
    plan = make_plan(1000 + seed) | {"how": ("kill", "raise", "exit")[seed % 3]}
    job = jobs.start(SCENARIO, plan["size"], json.dumps(plan), torchrun=True).finish()
    assert job.return_code != 0
    assert job.notes("failure")
