"""The page in a browser: every view of a recorded run and of a training that goes on, and what it says against the
store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hocket.observe import StoreClient, export_run, open_run, record_run

from .. import program
from ..load import scaled
from ..observe.fabricated_run import MS, FakeRank, Op, fabricate
from ..observe.stored_rows import served
from ..waiting import until
from .browser import BrowserPage

pytest.importorskip("playwright.sync_api")
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.timeout(300)
_TRAINING = """
import sys, time
import numpy as np
import hocket as hk
from hocket import observe
with hk.init(backends="shm") as comm:
    gradients = np.ones(100_000, np.float32)
    end = time.monotonic() + float(sys.argv[1])
    step = 0
    while True:
        with observe.region("forward", step=step):
            time.sleep(0.01 + 0.01 * comm.rank)
        with observe.region("backward", step=step):
            comm.all_reduce(gradients)
        if step % 20 == 0:
            open(f"{sys.argv[2]}-{comm.rank}", "wb").write(gradients.tobytes())
        step += 1
        is_over = np.array([time.monotonic() > end], np.float32)
        comm.all_reduce(is_over)
        if is_over[0]:
            break
"""


_STUCK = """
import os, sys, time
import numpy as np
import hocket as hk
from hocket import observe
with hk.init(backends="shm", timeout=300) as comm:
    comm.all_reduce(np.ones(4))
    if comm.rank == 1:
        with observe.region("loading"):
            while not os.path.exists(sys.argv[1]):
                time.sleep(0.01)
    comm.all_reduce(np.ones(1000))
"""


def _launch(folder: Path, seconds: float) -> list[str]:
    (folder / "train.py").write_text(_TRAINING)
    hocket = [sys.executable, "-m", "hocket.cli"]
    return [*hocket, "run", "-n", "2", str(folder / "train.py"), str(seconds), str(folder / "checkpoint")]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StoreClient, str]]:
    """A store with a recorded training, and the address of its page."""
    folder = tmp_path_factory.mktemp("page")
    assert record_run(_launch(folder, 3.0), folder / "training", interval_s=0.2).exit_code == 0
    with served(folder / "store", str(folder / "training")) as (_, client):
        until((folder / "store" / "loaded.json").exists)
        yield client, f"{client._url}/#token={client._headers['authorization'].partition(' ')[2]}"


def test_every_view_of_a_recorded_run(browser: Any, recorded: tuple[StoreClient, str]) -> None:
    client, address = recorded
    known = {path.rpartition("/")[2] for path in client.ask("/v1/openapi.json")["paths"] if "/views/" in path}
    for scheme in ("light", "dark"):
        with BrowserPage(browser, address, color_scheme=scheme) as shown:
            assert "token" not in shown.page.url
            assert known == {*shown.views}
            for view in shown.views:
                shown.show(view)
                assert shown.page.query_selector("main [role=alert]") is None, view
                assert shown.accessibility() == [], view
            assert shown.problems == []


def test_what_the_page_says_is_what_the_store_has(browser: Any, recorded: tuple[StoreClient, str]) -> None:
    client, address = recorded
    with BrowserPage(browser, address) as shown:
        shown.show("overview")
        for layer in ("operations", "io", "regions"):
            shown.page.wait_for_selector(f"tr[data-layer={layer}]")
            cells = shown.page.query_selector_all(f"tr[data-layer={layer}] td")
            count, busy_s, _, most_s = (float(cell.get_attribute("data-value")) for cell in cells)
            sql = f"SELECT count(*), sum(ended_s - began_s), max(ended_s - began_s) FROM {layer}"
            expected = client.ask("/v1/runs/training/query", method="POST", body=sql.encode())["rows"][0]
            assert count == expected[0]
            assert (busy_s, most_s) == pytest.approx(tuple(expected[1:]), rel=1e-6)
        shown.show("matrix")
        sent = "SELECT sum(sent_nbytes + modelled_nbytes) FROM matrix"
        waited = "SELECT sum(wait_s) FROM waits WHERE rank != late_rank AND late_rank >= 0"
        for names, sql in ((("sent", "modelled"), sent), (("waits",), waited)):
            found = [each for name in names for each in shown.page.query_selector_all(f"[data-total={name}]")]
            assert sum(float(each.get_attribute("data-value")) for each in found) == pytest.approx(
                client.ask("/v1/runs/training/query", method="POST", body=sql.encode())["rows"][0][0]
            )


def test_a_report_shows_what_the_server_shows(browser: Any, recorded: tuple[StoreClient, str], tmp_path: Path) -> None:
    client, address = recorded
    run = Path(client.ask("/v1/health")["store"]).parent / "training"
    written = program.hocket("observe", "report", str(run), str(tmp_path / "report.html"))
    assert written.returncode == 0, written.stderr
    with (
        BrowserPage(browser, address) as served,
        BrowserPage(browser, (tmp_path / "report.html").as_uri(), offline=True, color_scheme="dark") as report,
    ):
        assert {*report.views} == {*served.views} - {"history", "comparison"}
        for view in report.views:
            values = []
            for shown in (served, report):
                shown.show(view)
                assert shown.page.query_selector("main [role=alert]") is None, view
                cells = shown.page.query_selector_all("main [data-value]")
                values.append([each.get_attribute("data-value") for each in cells])
            assert values[0] == values[1], view
            assert report.accessibility() == [], view
        report.show("timeline")
        report.page.focus("canvas")
        before = report.page.screenshot()
        report.page.keyboard.press("+")
        report.page.wait_for_timeout(200)
        assert report.page.screenshot() != before and "from=" not in report.page.url
        assert report.problems == []


def test_the_keyboard_zooms_and_the_address_has_the_window(browser: Any, recorded: tuple[StoreClient, str]) -> None:
    with BrowserPage(browser, recorded[1], viewport={"width": 400, "height": 700}) as shown:
        shown.show("timeline")
        shown.page.wait_for_selector("canvas")
        shown.page.focus("canvas")
        for _ in range(3):
            shown.page.keyboard.press("+")
            shown.page.wait_for_timeout(100)
        assert "from=" in shown.page.url and "to=" in shown.page.url
        shown.page.go_back()
        shown.page.reload()
        shown.page.wait_for_selector("canvas")
        assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert shown.problems == []


def test_a_narrow_screen_has_whole_captions_and_low_rows(browser: Any, recorded: tuple[StoreClient, str]) -> None:
    with BrowserPage(browser, recorded[1], viewport={"width": 400, "height": 700}) as shown:
        num_captions = 0
        for view in shown.views:
            shown.show(view)
            ends = shown.page.evaluate(
                "[...document.querySelectorAll('caption span')].map(each => each.getBoundingClientRect().right)"
            )
            assert all(end <= 400 for end in ends), view
            num_captions += len(ends)
        assert num_captions > 5
        shown.show("processes")
        rows = "[...document.querySelector('main table').tBodies[0].rows]"
        assert shown.page.evaluate(f"{rows}.every(each => each.cells.length > 1 && each.offsetHeight <= 60)")


def test_each_view_is_kept_as_a_picture(browser: Any, recorded: tuple[StoreClient, str], tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    with BrowserPage(browser, recorded[1]) as shown:
        for view in shown.views:
            shown.show(view)
            shown.page.wait_for_timeout(300)
            with shown.page.expect_download() as download:
                shown.page.click("text=Save as PNG")
            download.value.save_as(tmp_path / f"{view}.png")
            picture = image.open(tmp_path / f"{view}.png").convert("RGB")
            colours = picture.getcolors(1 << 24)
            assert len(colours) > 10, view  # letters, at least
            assert max(count for count, _ in colours) < 0.999 * picture.width * picture.height, view
        assert shown.problems == []


def test_a_wrong_token_and_an_unknown_run_are_said(browser: Any, recorded: tuple[StoreClient, str]) -> None:
    url = recorded[0]._url
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{url}/#token={'x' * 43}")
    page.wait_for_selector("form input[type=password]")
    page.fill("form input", recorded[1].partition("token=")[2])
    page.click("form button")
    page.wait_for_selector("nav a")
    page.goto(f"{url}/#/nowhere/overview")
    page.wait_for_selector("[role=alert]")
    assert "nowhere" in page.inner_text("[role=alert]")
    context.close()


def test_a_damaged_run_is_said_and_a_run_that_comes_later_is_shown(browser: Any, tmp_path: Path) -> None:
    record_run(["cat", "/etc/hostname"], tmp_path / "run")
    export_run(open_run(tmp_path / "run"), tmp_path / "damaged.parquet")
    path = tmp_path / "damaged.parquet/io.parquet"
    rows = parquet.read_table(path)
    place = rows.column_names.index("nbytes")
    parquet.write_table(rows.set_column(place, "nbytes", pa.array([1 << 60] * rows.num_rows)), path)
    with served(tmp_path / "store", str(tmp_path / "damaged.parquet")) as (_, client):
        token = client._headers["authorization"].partition(" ")[2]
        with BrowserPage(browser, f"{client._url}/#token={token}", ready="aside") as shown:
            assert "damaged.parquet" in shown.page.inner_text("aside")
            assert shown.accessibility() == []
            client.ask("/v1/runs/later", method="PUT", body=b'{"command": ["train.py"]}')
            shown.page.wait_for_selector("header option:text-is('later')", state="attached")
            assert shown.problems == []


def test_a_page_whose_session_has_ended_asks_for_the_token(browser: Any, recorded: tuple[StoreClient, str]) -> None:
    with BrowserPage(browser, recorded[1]) as shown:
        shown.show("overview")
        shown.context.clear_cookies()
        shown.page.click("nav a[href$='/breakdown']")
        shown.page.wait_for_selector("form input[type=password]")
        assert shown.accessibility() == []
        shown.page.fill("form input", recorded[1].partition("token=")[2])
        shown.page.click("form button")
        shown.page.wait_for_selector("main table")
        assert shown.page.query_selector("main [role=alert]") is None


@contextmanager
def _going_on(folder: Path, *command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A program that is being recorded, and the address of its page."""
    record = [sys.executable, "-m", "hocket.cli", "observe", "run", "--output", str(folder / "run"), "--"]
    recording = subprocess.Popen([*record, *command], stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        claim = folder / "run" / "recording"
        until(lambda: claim.exists() and claim.stat().st_size, 30)
        with served(folder / "store", str(folder / "run")) as (_, client):
            token = client._headers["authorization"].partition(" ")[2]
            yield recording, f"{client._url}/#token={token}"
            recording.communicate(timeout=scaled(60))
    finally:
        if recording.poll() is None:
            os.killpg(recording.pid, signal.SIGKILL)
        recording.communicate(timeout=scaled(60))
    assert recording.returncode == 0


def test_a_training_that_goes_on(browser: Any, tmp_path: Path) -> None:
    with (
        _going_on(tmp_path, *_launch(tmp_path, scaled(15))) as (_, address),
        BrowserPage(browser, address) as shown,
    ):
        page = shown.page
        page.wait_for_selector("[data-state=live]", timeout=scaled(20) * 1000)
        shown.show("timeline")  # before the views, which may take longer than the training
        label = "(document.querySelector('canvas')?.ariaLabel ?? '')"
        shown.until(f"{label}.includes('lanes')")
        before = page.evaluate(label)
        page.wait_for_function(f"before => {label} !== before", arg=before, timeout=scaled(10) * 1000)
        for view in shown.views:
            shown.show(view)
            assert shown.accessibility() == [], view
        # When it is over, the page goes on to the whole run.
        shown.until("location.hash.startsWith('#/run/')", 60)
        shown.until("!document.querySelector('[data-state]')")
        assert shown.problems == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 400)])
def test_a_program_that_is_stuck(browser: Any, tmp_path: Path, scheme: str, width: int) -> None:
    """The operation under way comes first in Overview, until the rank that was missing has come."""
    (tmp_path / "stuck.py").write_text(_STUCK)
    launch = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(tmp_path / "stuck.py"), str(tmp_path / "over")]
    size = {"width": width, "height": 700}
    with (
        _going_on(tmp_path, *launch) as (_, address),
        BrowserPage(browser, address, color_scheme=scheme, viewport=size) as shown,
    ):
        section = "main section:first-of-type[aria-labelledby=unfinished]"
        shown.page.wait_for_selector(f"{section} td", timeout=scaled(30) * 1000)
        heads = shown.page.eval_on_selector_all(f"{section} thead th", "found => found.map(each => each.textContent)")
        cells = shown.page.eval_on_selector_all(f"{section} td", "found => found.map(each => each.dataset.value)")
        row = dict(zip((each.strip() for each in heads), cells, strict=True))
        assert (row["operation"], row["communicator"], row["size"]) == ("all_reduce", "world", "8000")
        assert (row["in it"], row["not there yet"]) == ("0", "1")
        assert float(row["for"]) >= 1.0
        assert shown.accessibility() == []
        assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        (tmp_path / "over").touch()
        shown.until("!document.querySelector('[data-state]')", 60)
        shown.until("document.querySelector('main h2') && !document.getElementById('unfinished')")
        assert shown.problems == []


def test_the_job_of_what_never_completed_is_shown_where_jobs_differ(browser: Any, tmp_path: Path) -> None:
    section = "section[aria-labelledby=unfinished]"
    with served(tmp_path / "store") as (_, client):
        token = client._headers["authorization"].partition(" ")[2]
        for num_jobs in (1, 2):
            stuck = [Op("all_reduce", 0, 10 * MS, None)]
            ranks = [
                FakeRank(rank, stuck if (job, rank) == (num_jobs - 1, 0) else [], start_ns=job,
                         communicators={1: ("world", "0-1", rank)}, variables={"MASTER_PORT": str(29500 + job)})
                for job in range(num_jobs) for rank in range(2)
            ]  # fmt: skip
            client.push(fabricate(ranks, world_size=2), f"run-{num_jobs}")
            address = f"{client._url}/#/run-{num_jobs}/overview"
            with BrowserPage(browser, f"{client._url}/#token={token}") as shown:
                shown.page.goto(address)
                shown.page.wait_for_selector(f"{section} td")
                heads = shown.page.eval_on_selector_all(f"{section} th", "all => all.map(each => each.textContent)")
                cells = shown.page.eval_on_selector_all(f"{section} td", "all => all.map(each => each.dataset.value)")
                row = dict(zip((each.strip() for each in heads), cells, strict=True))
                assert row.get("job") == (None if num_jobs == 1 else "1")
                assert shown.accessibility() == []
