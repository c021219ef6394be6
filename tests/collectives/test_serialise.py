"""Schedules survive a round trip through JSON; errors of invalid files name the place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hocket.collectives import algorithms, find_algorithm, verify
from hocket.collectives.draw import draw_schedule
from hocket.collectives.schedule import COLUMNS
from hocket.collectives.serialise import from_json, load_schedule, to_json
from hocket.collectives.simulate import simulate
from hocket.errors import InvalidArgument, InvalidSchedule
from hocket.sim import Link

from ..naming import NO_SUCH_FILE, raises


def test_round_trip() -> None:
    for algorithm in algorithms():
        schedule = algorithm.schedule(8)
        copy = from_json(to_json(schedule))
        verify(copy)
        assert repr(copy) == repr(schedule)
        for name in COLUMNS:
            np.testing.assert_array_equal(getattr(copy, name), getattr(schedule, name))


def changed(**changes: object) -> str:
    return json.dumps(json.loads(to_json(find_algorithm("broadcast", "binomial").schedule(4))) | changes)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{", "line 1"),
        ("[]", ("line 1", "version 1", "list")),
        (changed(format="hocket schedule, version 9"), ("line 1", "version 9", "version 1")),
        (changed(num_ranks=0), ("num_ranks", "1", "0")),
        (changed(num_ranks=True), ("num_ranks", "1", "True")),
        (changed(collective=3), ("collective", "3")),
        (changed(parameters=[]), ("parameters", "[]")),
        (changed(transfers=None), "transfers"),
        (changed(transfers=[[0, 0, 1, 0, 0, 0, 1]]), ("transfer 0", "[0, 0, 1, 0, 0, 0, 1]")),
        (changed(transfers=[[0, 0, 1, 0, 0, False]]), ("transfer 0", "[0, 0, 1, 0, 0, False]")),
        (changed(transfers=[[0, 0, 1, -1, 0, 0, False]]), ("transfer 0", "[0, 0, 1, -1, 0, 0, False]")),
        (changed(transfers=[[0, 0, 7, 0, 0, 0, False]]), ("destinations", "0", "3", "7")),
    ],
)
def test_what_is_wrong_is_named(text: str, names: str | tuple[str, ...]) -> None:
    with raises(InvalidSchedule, names=names):
        from_json(text)


def test_files(tmp_path: Path) -> None:
    with raises(InvalidSchedule, names=("none.json", NO_SUCH_FILE)):
        load_schedule(tmp_path / "none.json")
    path = tmp_path / "ring.json"
    path.write_text(to_json(find_algorithm("all_gather", "ring").schedule(3)))
    verify(load_schedule(path))


@pytest.mark.timeout(60)
def test_pictures(tmp_path: Path) -> None:
    schedule = find_algorithm("all_reduce", "rabenseifner").schedule(5)
    for name, simulation in (("rounds.png", None), ("time.svg", simulate(schedule, 1 << 20, Link.of(2, 10)))):
        draw_schedule(schedule, tmp_path / name, simulation)
        assert (tmp_path / name).stat().st_size > 5000
    with raises(InvalidArgument, names=("19800", "4000")):
        draw_schedule(find_algorithm("all_reduce", "ring").schedule(100), tmp_path / "no.png")
    assert not (tmp_path / "no.png").exists()
