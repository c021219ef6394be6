"""`hocket open` in a browser: every kind shows the numbers of its file, from a server and from one file without any."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.bench.engine_times import EngineTimes, to_text
from hocket.cli._output import json_text
from hocket.observe.serve.opened_results import open_results

from .. import program
from ..bench.engine_rows import ENGINES, LINK, engine_times
from ..observe.fabricated_fabric import fabric_file
from ..observe.opened_files import opened, write_files
from .browser import BrowserPage

pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.timeout(300)
# The values behind the numbers of the page.
_SHOWN = """new Set([...document.querySelectorAll('main [data-value]')]
    .map(each => each.dataset.value && Number(each.dataset.value)))"""
_START = "nav[aria-label=Opened] a"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def address(files: dict[str, Path]) -> Iterator[str]:
    with opened(files["bench"].with_name("before.json"), *files.values()) as (_, printed, _):
        yield printed["page"]


def _expected(files: dict[str, Path]) -> dict[str, list[float]]:
    """Of each kind, numbers that its page must have."""
    results = open_results([files["bench"].with_name("before.json"), *files.values()])
    answers = {each.kind: json.loads(results.answers[each.name]) for each in results.listed}
    bench, tuning = answers["bench"], answers["tuning"]
    return {
        "bench": [
            bench["core_factor"],
            *(value["value"] for value in bench["benchmarks"][0]["values"]),
            *(row["ratio"] for row in bench["differences"][0]["rows"]),
        ],
        "tuning": [
            *(row["seconds"] for row in tuning["times"]),
            *(row["cost_s"] for row in tuning["choices"]),
            *(row["cost_s"] for row in tuning["regrets"]),
        ],
        "observations": [row["total_s"] for row in answers["observations"]["rows"]],
        "fabric": [
            *(row["use"] for row in answers["fabric"]["links"]),
            *(row["most_use"] for row in answers["fabric"]["switches"]),
            *(row["value"] for row in answers["fabric"]["errors"] if row["value"] is not None),
            *(row["port"] for row in answers["fabric"]["changes"] + answers["fabric"]["silent"]),
        ],
        "pipeline": [answers["pipeline"][name] for name in ("seconds", "bound_s", "bubble")],
        "collective": [row["seconds"] for row in answers["collective"]["times"]],
        "traffic": [row["compute_s"] for row in answers["traffic"]["steps"]],
        "training": [each for curve in answers["training"]["curves"] for each in curve["values"] if each is not None],
        "engines": [
            answers["engines"]["core_factor"],
            *(row["ms"] for group in answers["engines"]["groups"] for row in group["rows"][:1]),
        ],
        "simulation": [answers["simulation"][name] for name in ("seconds", "compute_s", "waits_s")],
    }


def _check(shown: BrowserPage, files: dict[str, Path], *, checks_accessibility: bool) -> None:
    """Show every file, and find its numbers."""
    for kind, expected in _expected(files).items():
        shown.page.click(f"{_START}:text-is('{files[kind].name}')")
        shown.page.wait_for_selector(f"main h2:has-text('{files[kind].name}')")
        shown.until(f"{json.dumps(expected)}.every(each => ({_SHOWN}).has(each))")
        assert shown.page.query_selector("main [role=alert]") is None, kind
        assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), kind
        if checks_accessibility:
            assert shown.accessibility() == [], kind


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 400)])
def test_every_kind_from_the_server(
    browser: Any, files: dict[str, Path], address: str, scheme: str, width: int
) -> None:
    size = {"width": width, "height": 700}
    with BrowserPage(browser, address, ready=_START, color_scheme=scheme, viewport=size) as shown:
        names = shown.page.eval_on_selector_all("main th a", "found => found.map(each => each.textContent)")
        assert names == ["before.json", *(path.name for path in files.values())]
        assert shown.accessibility() == []
        _check(shown, files, checks_accessibility=True)
        shown.page.go_back()
        shown.page.reload()
        shown.page.wait_for_selector("main table")
        assert shown.problems == []


def test_every_kind_from_one_file(browser: Any, files: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    paths = [str(path) for path in (files["bench"].with_name("before.json"), *files.values())]
    done = program.hocket("open", *paths, "--html", str(page))
    assert (done.returncode, done.stderr) == (0, "")
    with BrowserPage(browser, page.as_uri(), ready=_START, offline=True) as shown:
        _check(shown, files, checks_accessibility=False)
        assert shown.problems == []


def test_one_file_is_shown_at_once(browser: Any, files: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert program.hocket("open", str(files["pipeline"]), "--html", str(page)).returncode == 0
    with BrowserPage(browser, page.as_uri(), ready="main canvas") as shown:
        assert shown.page.query_selector("nav") is None
        shown.page.goto(f"{page.as_uri()}#/~/nothing.json")
        shown.page.wait_for_selector("main [role=alert]")
        assert "nothing.json" in shown.page.inner_text("[role=alert]")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 400)])
def test_a_fabric_of_a_thousand_hosts(browser: Any, tmp_path: Path, scheme: str, width: int) -> None:
    """Its picture, and its links between switches as a grid; the most used links come first, the others on demand."""
    path, page = tmp_path / "fabric.json", tmp_path / "page.html"
    path.write_text(json_text(fabric_file(48, 24, 24).content()))
    assert program.hocket("open", str(path), "--html", str(page)).returncode == 0
    size = {"width": width, "height": 700}
    with BrowserPage(browser, page.as_uri(), ready="main canvas", color_scheme=scheme, viewport=size) as shown:
        cells = f"canvas[aria-label^='{48} rows and {24} columns']"
        shown.page.wait_for_selector(cells)
        shown.until("document.querySelectorAll('main canvas').length == 2")
        assert shown.accessibility() == []
        assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        rows = "table:has(caption span:text-is('Each direction')) tbody tr"
        assert len(shown.page.query_selector_all(rows)) < 100
        uses = shown.page.eval_on_selector_all(f"{rows} td:nth-child(5)", "all => all.map(each => each.dataset.value)")
        assert uses[0] == "0.999" and [*map(float, uses)] == sorted(map(float, uses), reverse=True)
        shown.page.click("button:text-is('Show all 4607 rows')")
        assert len(shown.page.query_selector_all(rows)) == 4607
        shown.page.focus(cells)
        shown.page.keyboard.press("ArrowDown")
        shown.until("[...document.querySelectorAll('[aria-live]')].some(each => each.textContent.includes('leaf0'))")
        assert shown.problems == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 400)])
def test_times_of_engines(browser: Any, tmp_path: Path, scheme: str, width: int) -> None:
    """A chart for each model and batch: bars of what was measured, lines of what was simulated; at most so many."""
    path, page = tmp_path / "engines.json", tmp_path / "page.html"
    size = {"width": width, "height": 700}
    for batches, num_charts in (((1, 32), 6), (range(1, 51), 24)):
        times = engine_times(batches=batches) if num_charts == 6 else engine_times(["gpt"], batches)
        path.write_text(to_text(replace(times, foreign_busy=0.5)))
        assert program.hocket("open", str(path), "--html", str(page)).returncode == 0
        with BrowserPage(browser, page.as_uri(), ready="main table", color_scheme=scheme, viewport=size) as shown:
            shown.until(f"document.querySelectorAll('main canvas').length == {2 * num_charts}")
            labels = shown.page.eval_on_selector_all(
                "main section [role=img]", "all => all.map(each => each.ariaLabel)"
            )
            bars, lines = labels[:num_charts], labels[num_charts:]
            assert all(engine in label for label in labels for engine in ENGINES)
            assert all("simulated" in label for label in lines) and not any("simulated" in label for label in bars)
            assert LINK in shown.page.inner_text("main") and shown.page.query_selector("main [role=note]")
            assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert shown.accessibility() == []
            table = shown.page.query_selector_all("main table:not(.u-legend)")[-1]
            (heading,) = (each for each in table.query_selector_all("th button") if each.inner_text() == "time")
            heading.click()
            place = table.eval_on_selector_all("th", "all => all.findIndex(each => each.ariaSort == 'descending')")
            cells = f"tbody td:nth-child({place + 1})"
            shown_ms = table.eval_on_selector_all(cells, "all => all.map(each => Number(each.dataset.value))")
            assert shown_ms == sorted((each.ms for each in times.rows), reverse=True)[:50]
            assert shown.problems == []


def test_as_many_engines_as_a_file_may_have(browser: Any, tmp_path: Path) -> None:
    """Some of them are drawn, and the table has all."""
    (row,) = engine_times(["gpt"], [8], []).rows[:1]
    rows = tuple(replace(row, engine=f"fused fusion_nbytes={each}") for each in range(10_000))
    path, page = tmp_path / "engines.json", tmp_path / "page.html"
    path.write_text(to_text(EngineTimes(rows, 1.0, 0.0)))
    assert program.hocket("open", str(path), "--html", str(page)).returncode == 0
    with BrowserPage(browser, page.as_uri(), ready="main canvas") as shown:
        assert shown.page.evaluate("document.querySelector('main canvas').getBoundingClientRect().height < 3000")
        shown.page.click("button:text-is('Show all 10000 rows')")
        assert shown.page.evaluate("document.querySelectorAll('main tbody tr').length") == 10_001
        assert shown.problems == []


def test_a_name_may_have_any_characters(browser: Any, files: dict[str, Path], tmp_path: Path) -> None:
    odd, page = tmp_path / "1/2? 100% #é<b>.json".replace("/", "-"), tmp_path / "page.html"
    odd.write_bytes(files["traffic"].read_bytes())
    assert program.hocket("open", str(odd), str(files["tuning"]), "--html", str(page)).returncode == 0
    with (
        opened(odd, files["tuning"]) as (_, printed, _),
        BrowserPage(browser, printed["page"], ready=_START) as served,
        BrowserPage(browser, page.as_uri(), ready=_START) as written,
    ):
        for shown in (served, written):
            shown.page.click("main th a")
            shown.page.wait_for_selector("main table td[data-value='0.25']")
            assert odd.name in shown.page.inner_text("main h2")
            shown.page.reload()
            shown.page.wait_for_selector("main table td[data-value='0.25']")
            assert shown.problems == []


def test_the_keyboard_reaches_every_file(browser: Any, files: dict[str, Path], address: str) -> None:
    with BrowserPage(browser, address, ready=_START) as shown:
        shown.page.focus(f"{_START}:text-is('{files['tuning'].name}')")
        shown.page.keyboard.press("Enter")
        shown.page.wait_for_selector("main select")
        shown.page.focus("main th button")
        shown.page.keyboard.press("Enter")
        shown.page.wait_for_selector("main th[aria-sort]")
        assert shown.problems == []
