"""Progress: what a terminal and what a file get to see."""

import io
import math
import sys

import pytest

from hocket.measure import progress
from hocket.measure.progress_bar import Bar, Lines, Pace, format_left

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (200, "3:20"), (3900, "1:05:00")]
)
def test_seconds_as_people_say_them(seconds, text):
    assert format_left(seconds) == text


def test_the_pace_tells_the_time_left(monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    pace = Pace()
    now = 110.0
    assert pace.left_s(0, 4) is None and pace.left_s(1, 4) == 30.0 and pace.left_s(4, 4) == 0.0
    assert pace.share(30.0) == 0.25 and pace.share(0.0) == 1.0


def test_lines_name_what_is_done_and_how_long_it_takes_and_come_seldom(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    lines = Lines("sweep", "points")
    for now in range(25):
        lines.write(min(now, 20), 40, "all_reduce 8 B", 75.0)
    now = 30.0
    lines.write(40, 40, "", 0.0)
    seen = capsys.readouterr().err.splitlines()
    assert len(seen) == 4 and "left" not in seen[-1]
    assert all("sweep" in line and "all_reduce 8 B" in line and "1:15" in line for line in seen[:-1])


def test_without_a_time_left_it_follows_from_the_pace(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    lines = Lines("sweep", "points")
    now = 20.0
    lines.write(10, 40, "")
    assert "1:00" in capsys.readouterr().err


def drawn(bar: Bar) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=140, force_terminal=False)
    console.print(bar.columns)
    return console.file.getvalue()


def test_a_bar_is_full_by_time_even_before_anything_is_done():
    bar = Bar("sweep", "points")
    assert "sweep" in drawn(bar)
    bar.update(0, 24, "least known [all_reduce] 8 B", 90.0)
    text = drawn(bar)
    assert "0 of 24 points" in text and "1:30" in text and "[all_reduce]" in text
    (task,) = bar.columns.tasks
    assert 0 < task.percentage < 1
    bar.update(24, 24, "", 0.0)
    assert math.isclose(bar.columns.tasks[0].percentage, 100.0)


def test_progress_on_a_terminal_is_a_bar(monkeypatch):
    stderr = io.StringIO()
    stderr.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress("sweep", "points") as show:
        show(3, 4, "schedules", 5.0)
    assert "3 of 4 points" in stderr.getvalue() and "schedules" in stderr.getvalue()


def test_ranks_that_show_nothing_take_the_same_calls(capsys):
    with progress("sweep", shown=False) as show:
        show(1, 2, "a")
        show(2, 2, "b", 1.0)
    assert capsys.readouterr().err == ""
