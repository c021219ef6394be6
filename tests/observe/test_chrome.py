"""Timelines for Perfetto: every event once, slices of a track nested, arrows between the slices of one message."""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.errors import InvalidArgument
from hocket.observe import export_run, open_run, record_run
from hocket.observe.formats.lanes import divide_into_lanes

from ..naming import raises
from ..program import hocket
from .fabricated_run import MS, FakeRank, Op, fabricate

pytestmark = pytest.mark.timeout(120)
_PROGRAM = """
import numpy as np
import hocket as hk
from hocket import observe
with hk.init() as comm:
    with observe.region("outer"):
        works = [comm.isend(np.ones(10), 1 - comm.rank) for _ in range(3)]
        with observe.region("inner", step=4):
            for _ in range(3):
                comm.recv(np.empty(10), 1 - comm.rank)
        for work in works:
            work.wait()
    comm.all_reduce(np.ones(4), algorithm="ring")
"""


def _trace(path: Path) -> list[dict[str, Any]]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return list(json.loads(content)["traceEvents"])


def _assert_nested(events: list[dict[str, Any]]) -> None:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
    for slices in tracks.values():
        stack: list[float] = []
        for begin, length in sorted(slices):
            while stack and stack[-1] <= begin + 1e-6:
                stack.pop()
            assert not stack or begin - length <= stack[-1] + 1e-3
            stack.append(begin - length)


def _innermost(events: list[dict[str, Any]], point: dict[str, Any]) -> dict[str, Any]:
    """The innermost slice at a point of a track."""
    around = [
        event
        for event in events
        if event["ph"] == "X"
        and (event["pid"], event["tid"]) == (point["pid"], point["tid"])
        and event["ts"] <= point["ts"] <= event["ts"] + event["dur"]
    ]
    return max(around, key=lambda event: event["ts"])


def test_a_recorded_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    record_run([sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(tmp_path / "program.py")], tmp_path / "run")
    run = open_run(tmp_path / "run")
    done = hocket("observe", "export", str(tmp_path / "run"), str(tmp_path / "trace.json.gz"), "--json")
    assert json.loads(done.stdout)["nbytes"] == (tmp_path / "trace.json.gz").stat().st_size
    events = _trace(tmp_path / "trace.json.gz")
    _assert_nested(events)
    # All events that are no numbers are slices.
    recorded: Counter[tuple[int, str]] = Counter()
    for place, process in enumerate(run.processes):
        for ring, of_ring in process.events.items():
            is_number = of_ring["kind"] == 0 if ring == "process" else np.zeros(len(of_ring), bool)
            recorded[place, ring] = int(np.count_nonzero(~is_number))
    shown = Counter((event["pid"], event["cat"]) for event in events if event["ph"] == "X")
    assert shown == Counter({key: count for key, count in recorded.items() if count})
    # Three messages in each direction, each arrow forward in time from a send into its receive.
    flows: dict[int, dict[str, Any]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]][event["ph"]] = event
    assert len(flows) == 6
    for ends in flows.values():
        assert ends["s"]["ts"] <= ends["f"]["ts"]
        send, receive = (_innermost(events, ends[phase]) for phase in "sf")
        assert (send["name"], receive["name"]) == ("send", "recv")
        assert send["args"]["number"] == receive["args"]["number"] and send["args"]["nbytes"] == 80
        assert send["pid"] != receive["pid"] and send["ts"] <= receive["ts"] + receive["dur"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert any(name.startswith("rank 0, ") for name in names) and any(name.startswith("rank 1, ") for name in names)
    assert {event["name"] for event in events if event["ph"] == "C"} == {"CPU", "memory"}


def test_what_never_completed_lasts_until_the_end(tmp_path: Path) -> None:
    run = fabricate([FakeRank(0, [Op("barrier", 1, MS, None), Op("all_reduce", 2, 2 * MS, 9 * MS)])])
    export_run(run, tmp_path / "trace.json")
    barrier, reduction = [event for event in _trace(tmp_path / "trace.json") if event["ph"] == "X"]
    assert (barrier["ts"], barrier["dur"], barrier["args"]["state"]) == (
        pytest.approx(1000), pytest.approx(8000), "started"
    )  # fmt: skip
    assert reduction["dur"] == pytest.approx(7000)


@pytest.mark.parametrize("seed", range(20))
def test_lanes_hold_only_what_nests(seed: int) -> None:
    draw = np.random.default_rng(seed)
    begins = np.sort(draw.integers(0, 40, 60))
    ends = begins + draw.integers(0, 15, 60)
    order = np.lexsort((-ends, begins))
    begins, ends = begins[order], ends[order]
    lanes = divide_into_lanes(begins.astype(float), ends.astype(float))
    for one in range(len(begins)):
        for other in range(one + 1, len(begins)):
            if lanes[one] == lanes[other]:
                assert begins[other] >= ends[one] or ends[other] <= ends[one]


@pytest.mark.parametrize("name", ["trace.txt", "trace", "nowhere/trace.json"])
def test_files_that_cannot_be_written(name: str, tmp_path: Path) -> None:
    with raises(InvalidArgument, names=(name.split("/")[0],)):
        export_run(fabricate([FakeRank(0)]), tmp_path / name)
    assert list(tmp_path.iterdir()) == []
