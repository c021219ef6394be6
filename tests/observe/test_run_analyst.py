"""Analyses of a run that goes on, when their processes are killed or what they read is no run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from hocket.observe import record_run
from hocket.observe.serve.run_analyst import RunAnalyst

from ..load import scaled

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("analysed") / "run"
    assert record_run(["sh", "-c", "cat /etc/hostname; cat /etc/hostname; true"], folder).exit_code == 0
    return folder


def _tables(analyst: RunAnalyst, places: dict[tuple[str, str], int], wanted: set[str]) -> set[str]:
    found: set[str] = set()
    deadline_s = time.monotonic() + scaled(60)
    while not wanted <= found:
        assert time.monotonic() < deadline_s
        found |= analyst.look(places).keys()
        time.sleep(0.02)
    return found


def test_an_analysis_whose_process_was_killed_begins_again(run: Path) -> None:
    """Both are killed while they begin: their tables come nevertheless, and each is reported once."""
    reports: list[tuple[str, str]] = []
    before = {each.pid for each in multiprocessing.active_children()}
    with RunAnalyst(run, lambda *report: reports.append(report)) as analyst:
        places = {("host", "process"): 0}
        assert analyst.look(places) == {}
        victims = [each for each in multiprocessing.active_children() if each.pid not in before]
        assert len(victims) == 2
        for each in victims:
            os.kill(each.pid or 0, signal.SIGKILL)
        _tables(analyst, places, {"unfinished", "findings"})
    assert len({name for name, _ in reports}) == len(reports) == 2


def test_an_analysis_that_fails_is_reported_and_the_other_goes_on(run: Path) -> None:
    """Numbers of processes that cannot be ordered stand for all that an analysis cannot bear."""
    from hocket.observe import open_run

    first, second, *_ = open_run(run).processes
    places = {(first.host, first.name): 0, (second.host, second.name): "x"}
    reports: list[tuple[str, str]] = []
    with RunAnalyst(run, lambda *report: reports.append(report)) as analyst:
        _tables(analyst, places, {"unfinished"})  # type: ignore[arg-type]
        deadline_s = time.monotonic() + scaled(60)
        while not reports:
            assert time.monotonic() < deadline_s
            assert "findings" not in analyst.look(places)  # type: ignore[arg-type]
            time.sleep(0.02)
    ((_, problem),) = reports
    assert "TypeError" in problem
