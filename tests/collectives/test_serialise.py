"""Schedules travel as JSON; what is wrong with a file is named."""

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


def test_there_and_back() -> None:
    for algorithm in algorithms():
        schedule = algorithm.schedule(8)
        back = from_json(to_json(schedule))
        verify(back)
        assert repr(back) == repr(schedule)
        for name in COLUMNS:
            np.testing.assert_array_equal(getattr(back, name), getattr(schedule, name))


def changed(**changes: object) -> str:
    return json.dumps(json.loads(to_json(find_algorithm("broadcast", "binomial").schedule(4))) | changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1"),
        ("[]", "not a hocket schedule"),
        (changed(format="hocket schedule, version 9"), "not a hocket schedule, version 1"),
        (changed(num_ranks=0), "num_ranks is a number from 1 on, not 0"),
        (changed(num_ranks=True), "num_ranks is a number from 1 on, not True"),
        (changed(collective=3), "collective is a name, not 3"),
        (changed(parameters=[]), "parameters are an object"),
        (changed(transfers=None), "no list of transfers"),
        (changed(transfers=[[0, 0, 1, 0, 0, 0, 1]]), "transfer 0 has rounds, sources"),
        (changed(transfers=[[0, 0, 1, 0, 0, False]]), "transfer 0 has"),
        (changed(transfers=[[0, 0, 1, -1, 0, 0, False]]), "transfer 0 has"),
        (changed(transfers=[[0, 0, 7, 0, 0, 0, False]]), "destinations are 0 to 3 here, not 7"),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    with pytest.raises(InvalidSchedule, match=words):
        from_json(text)


def test_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidSchedule, match=r"none\.json: No such file"):
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
    with pytest.raises(InvalidArgument, match="cannot be told apart"):
        draw_schedule(find_algorithm("all_reduce", "ring").schedule(100), tmp_path / "no.png")
    assert not (tmp_path / "no.png").exists()
