"""`hocket tune compare`: a program's traffic over each library, and over a mix of libraries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hocket.cli._compare import conclude
from hocket.trace.traffic import Traffic, TrafficStep

from ..naming import NO_SUCH_FILE, assert_names
from .command import hocket

pytestmark = pytest.mark.timeout(120)
STEPS = (
    TrafficStep("all_reduce", 64, "float32", reduction="sum"),
    TrafficStep("broadcast", 4096, "float32", root=0),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Traffic("step", 2, "a test", STEPS).save(tmp_path / "step.json")
    Traffic("of three", 3, "a test", STEPS).save(tmp_path / "three.json")
    Traffic("of one", 1, "a test", STEPS).save(tmp_path / "one.json")
    return tmp_path


def test_every_library_and_the_mix_are_timed(folder: Path) -> None:
    done = hocket(folder, "tune", "compare", "step.json", "--backends", "shm,mpi", "--rounds", "6", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result["backends"]) == {"shm", "mpi"}
    (traffic,) = result["traffics"]
    assert (traffic["name"], traffic["source"]) == ("step", "a test")
    assert {"shm", "mpi"} < set(traffic["variants"]) and len(traffic["variants"]) == 4
    assert all(each["seconds"] > 0 for each in traffic["variants"].values())
    assert traffic["best_single"] in ("shm", "mpi")
    assert traffic["verdict"] in ("one library", "faster", "slower", "not distinguishable", "not judged")
    assert traffic["conclusion"].endswith(".")
    assert traffic["interval"][0] <= traffic["ratio"] <= traffic["interval"][1]
    assert [(each["op"], each["nbytes"], each["count"]) for each in traffic["chosen"]] == [
        ("all_reduce", 64, 1),
        ("broadcast", 4096, 1),
    ]


def test_the_table_for_people(folder: Path) -> None:
    done = hocket(folder, "tune", "compare", "step.json", "--backends", "shm", "--rounds", "6")
    assert done.returncode == 0, done.stderr
    assert_names(done.stdout, "step", "shm", "all_reduce", "broadcast", "64 B", "4 KiB", "float32")


@pytest.mark.parametrize(
    ("carriers", "ratio", "interval", "foreign_busy", "verdict"),
    [
        ({"shm", "mpi"}, 1.25, [1.2, 1.3], 0.0, "faster"),
        ({"shm", "mpi"}, 1.54, [0.94, 2.08], 0.0, "not distinguishable"),
        ({"mpi"}, 0.8, [0.7, 0.9], 0.0, "slower"),
        ({"mpi"}, 0.9, [0.7, 1.1], 0.0, "not distinguishable"),
        ({"shm", "mpi"}, 1.25, [1.2, 1.3], 0.3, "not judged"),
        ({"shm", "mpi"}, 1.25, None, 0.0, "not judged"),
        ({"shm"}, 1.0, [0.9, 1.1], 0.3, "one library"),
    ],
)
def test_a_gain_is_told_only_where_the_interval_shows_one(
    carriers: set[str], ratio: float, interval: list[float] | None, foreign_busy: float, verdict: str
) -> None:
    chosen = [{"carrier": each} for each in carriers]
    traffic = {"best_single": "shm", "chosen": chosen, "ratio": ratio, "interval": interval, "rounds": 9}
    found, sentence = conclude(traffic, foreign_busy)
    assert found == verdict
    assert (f"{ratio:.2f}" in sentence) is (verdict in ("faster", "slower", "not distinguishable"))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("none.json",), ("none.json", NO_SUCH_FILE)),
        (("step.json", "three.json"), ("step.json", "2", "three.json", "3")),
        (("one.json",), ("one.json", "1", "2")),
        (("step.json", "--rounds", "5"), ("--rounds", "6", "5")),
        (("step.json", "--backends", "shmm"), ("'shmm'", "shm")),
    ],
)
def test_wrong_arguments(folder: Path, arguments: tuple[str, ...], names: tuple[str, ...]) -> None:
    done = hocket(folder, "tune", "compare", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert_names(done.stderr, *names)
    assert done.stderr.count("\n") == 1
