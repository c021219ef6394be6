"""Pictures, terminal output and traces agree with the timeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hocket.errors import InvalidArgument
from hocket.pipeline import CostModel, add_gradient_sync, build, simulate
from hocket.pipeline.draw import draw_timelines, title_of
from hocket.pipeline.terminal import draw_text
from hocket.pipeline.trace_file import write_trace
from hocket.sim import Link

from ..naming import NO_SUCH_FILE, raises
from ..tier import sample
from .tables import all_schedules

pytestmark = pytest.mark.timeout(120)


def test_pictures_of_all_schedules(tmp_path: Path) -> None:
    """An SVG picture contains the text of the titles."""
    timelines = [simulate(each) for each in sample(all_schedules(), 8)]
    path = tmp_path / "all.svg"
    draw_timelines(timelines, path, messages=True, memory=True)
    text = path.read_text()
    assert text.count("<!-- simulated: ") == len(timelines)
    assert all(title_of(each).split("\n")[0] in text for each in timelines)
    picture = tmp_path / "one.png"
    draw_timelines(timelines[0], picture, titles=["mine"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    with raises(InvalidArgument, names=("2", "1", "titles")):
        draw_timelines(timelines[:2], path, titles=["mine"])
    with raises(InvalidArgument, names=("131072", "30000")):
        draw_timelines(simulate(build("1f1b", 64, 1024)), path)


def test_titles_name_both_ratios() -> None:
    title = title_of(simulate(build("zb-v", 4, 8), CostModel(seconds={"F": 5e-4, "I": 5e-4, "W": 5e-4})))
    assert title == ("zb-v: 4 ranks, 8 micro-batches\nsimulated: 25.5 ms, bubbles 5.9% of the step, 0.0% of the span")


def test_terminal() -> None:
    text = draw_text(simulate(build("1f1b", 2, 2)), width=22)
    first, second = text.splitlines()
    assert first.startswith("0 F0")
    assert second.startswith("1 ··")
    assert len(first) == len(second) == 22
    colored = draw_text(simulate(build("1f1b", 2, 2)), width=22, color=True)
    assert "\x1b[30;44m" in colored
    assert colored.endswith("\x1b[0m") or "·" in colored[-3:]


def test_traces(tmp_path: Path) -> None:
    """One slice per action, at its time in the timeline; one arrow per message, between its slices."""
    costs = CostModel(fabric=Link(0.1, 0.0))
    timelines = [simulate(build("1f1b", 2, 3), costs), simulate(add_gradient_sync(build("chimera", 2, 3)), costs)]
    path = tmp_path / "trace.json"
    write_trace(timelines, path)
    events = json.loads(path.read_text())["traceEvents"]
    slices = [each for each in events if each["ph"] == "X" and each["cat"] != "message"]
    assert len(slices) == sum(len(each.schedule) for each in timelines)
    slice_1b0 = next(each for each in slices if each["name"] == "1B0" and each["pid"] == 1)
    row = timelines[0].schedule.columns.starts[1] + 1
    assert slice_1b0["ts"] == pytest.approx(1e6 * timelines[0].begin_s[row])
    assert slice_1b0["dur"] == pytest.approx(2e6)
    starts = {each["id"]: each for each in events if each["ph"] == "s"}
    ends = {each["id"]: each for each in events if each["ph"] == "f"}
    assert set(starts) == set(ends)
    assert len(starts) == sum(len(each.messages) for each in timelines)
    assert all(starts[number]["ts"] <= ends[number]["ts"] for number in starts)
    names = [each["args"]["name"] for each in events if each["name"] == "process_name"]
    assert names == ["1f1b, simulated: rank 0", "1f1b, simulated: rank 1", "chimera, simulated: rank 0",
                     "chimera, simulated: rank 1"]  # fmt: skip
    assert {each["ph"] for each in events} == {"M", "X", "C", "s", "t", "f"}
    with raises(InvalidArgument, names=("2", "1", "names")):
        write_trace(timelines, path, names=["mine"])
    with raises(InvalidArgument, names=("trace.json", NO_SUCH_FILE)):
        write_trace(timelines, tmp_path / "absent" / "trace.json")
