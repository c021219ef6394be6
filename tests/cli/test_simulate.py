"""`hocket simulate`: its output, and its messages about wrong arguments."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from hocket.session.simulation_file import SimulationFile
from hocket.trace.traffic import Traffic, TrafficStep

from .. import program
from ..naming import assert_names

hocket = partial(program.hocket, "simulate", timeout_s=50)
pytestmark = pytest.mark.timeout(60)


def test_model() -> None:
    done = hocket("dlrm-criteo", "-n", "16", "--latency", "0", "--bandwidth", "1", "--json")
    content = json.loads(done.stdout)
    assert content["num_ranks"] == 16
    simulated = content["simulated"]
    assert SimulationFile.from_json(done.stdout, "here").simulated.seconds == simulated["seconds"]
    reduced = sum(each["nbytes"] for each in simulated["operations"] if each["kind"] == "all_reduce")
    assert simulated["seconds"] >= 2 * 15 / 16 * reduced / 1e9  # the minimum for any algorithm
    assert "16 of 16 ranks" in done.stderr
    text = hocket("dlrm-criteo", "-n", "16").stdout
    assert "dlrm-criteo between 16 ranks, simulated" in text and "(simulated, not measured)" in text


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    steps = (
        TrafficStep("all_reduce", 8_000_000, reduction="sum", is_async=True, compute_s=0.5),
        TrafficStep("all_gather", 4_000_000, compute_s=0.25),
    )
    Traffic("mine", 2, "a test", steps).save(path)
    link = ("--latency", "0", "--bandwidth", "1", "--json")
    seconds = json.loads(hocket(str(path), *link).stdout)["simulated"]["seconds"]
    assert seconds == pytest.approx(0.5 + 0.25 + 0.004)  # the all_reduce is hidden
    content = json.loads(hocket(str(path), "-n", "4", *link).stdout)
    assert content["source"] == "a test; carried over from 2 ranks"
    assert content["simulated"]["seconds"] == pytest.approx(0.5 + 0.25 + 3 * 0.002)


def test_hosts() -> None:
    arguments = ("gpt-345m", "-n", "8", "--ranks-per-host", "4", "--json")
    operations = json.loads(hocket(*arguments).stdout)["simulated"]["operations"]
    assert any(each["algorithm"].startswith("hierarchical(ranks_per_host=4") for each in operations)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["nothing.json"], ("'nothing.json'", "gpt-345m", "moe-350m", "dlrm-criteo")),
        (["gpt-345m", "-n", "0"], ("-n", "1", "0")),
        (["gpt-345m", "--tflops", "0"], ("--tflops", "0.0")),
        (["gpt-345m", "--bandwidth", "0"], ("0.0", "GB/s")),
        (["gpt-345m", "--ranks-per-host", "0"], ("--ranks-per-host", "1", "0")),
        ([], ("'MODEL|FILE'", "hocket simulate --help")),
    ],
)
def test_wrong_arguments(arguments: list[str], names: tuple[str, ...]) -> None:
    done = hocket(*arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert_names(done.stderr, "hocket simulate", *names)
