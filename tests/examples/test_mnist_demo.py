"""The demo: its driver with real processes, and its report of made-up results."""

import html
import html.parser
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hocket.comm.policy import split_carrier
from hocket.measure import Ratio

from ..tier import full

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "mnist_ddp"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the example's folder on the path, as for a script in it; remove its modules afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(EXAMPLE)):
            del sys.modules[name]


def make_demo(
    results: ModuleType,
    hocket_losses: list[float] | None = None,
    speed_up: tuple[float, float, float] = (1.5, 1.4, 1.6),
    too_busy: bool = False,
) -> Any:
    """Return a small made-up result in the form that the jobs write."""
    losses = [2.0 / step for step in range(1, 61)]
    records = [{"op": "all_reduce", "nbytes": 208_552, "dtype": "float32", "seconds": 4e-5}] * 60
    records += [{"op": "broadcast", "nbytes": 0, "dtype": "int64", "seconds": 2e-6}]

    def training(name: str, losses: list[float], operations: list[dict[str, object]]) -> object:
        return results.Training(name, 2, 8, 52_138, [0.9, 0.96], losses, [1e-3] * 60, 1.0, operations)

    one = results.Estimate(1.0, 0.9, 1.1)
    both = {"gloo": one, "hocket": one}
    rounds = {f"{name}{kind}": [1.0, 1.1, 0.9] for name in both for kind in ("", " no_sync")}
    trainings = {"gloo": training("gloo", losses, []), "hocket": training("hocket", hocket_losses or losses, records)}
    share = {"gloo": results.Estimate(0.4, 0.3, 0.5), "hocket": results.Estimate(-0.01, -0.05, 0.1)}
    speed_ups = {"hocket": Ratio(*speed_up, 9)}
    timing = results.Timing(both, both, share, speed_ups, rounds, 50.0, 1.8, 0.3, too_busy, Ratio(1.0, 0.9, 1.1, 9))
    seconds = {"shm": 1e-4, "mpi": 2e-4, "mix, per size": 8e-5}
    predicted = {"shm": 1e-4, "mpi": None, "mix, per size": 8e-5}
    chosen = [("all_to_all", "float32", 61_440, 4, "mpi"), ("all_reduce", "float32", 32, 1, "shm")]
    mixes = {"all libraries": results.Mix("made up", seconds, predicted, chosen, "the mix is fine", too_busy)}
    return results.Demo(trainings, timing, {"processor": "made <up>"}, mixes)


class Page(html.parser.HTMLParser):
    """Collects the ids and everything that a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.fetched.append(f"{tag} {value}")


@pytest.mark.usefixtures("example")
def test_report_is_self_contained_and_consistent(tmp_path: Path) -> None:
    import report
    import results

    demo = make_demo(results)
    text = report.write_report(demo, tmp_path / "new" / "folder").read_text()
    page = Page(text)
    assert not page.fetched and not re.search(r"@import|url\((?!#)", text)
    assert len(page.ids) == len(set(page.ids))
    assert text.count("<svg") == 6 and "made &lt;up&gt;" in text and "208,552 B" in text
    assert "61,440 B" in text and "the mix is fine" in text
    values = json.loads((tmp_path / "new" / "folder" / "report.json").read_text())
    assert values["equal_steps"] == 60 and values["shortfalls"] == []
    assert [(group["op"], group["count"]) for group in values["operations"]] == [("all_reduce", 60), ("broadcast", 1)]
    assert (tmp_path / "new" / "folder" / "report.png").read_bytes().startswith(b"\x89PNG")


def rendered(demo: Any, folder: Path) -> tuple[str, str]:
    """Return the text of the terminal and of the page, without the pictures, which would take seconds to draw."""
    import report
    from rich.console import Console

    report.inline_svgs = lambda demo: defaultdict(str)
    report.save_picture = lambda demo, path, description: None

    console = Console(record=True, width=200, file=io.StringIO())
    console.print(*report.tables(demo), *report.mix_tables(demo))
    page = report.write_report(demo, folder).read_text()
    return console.export_text(), page


@pytest.mark.usefixtures("example")
def test_a_share_of_communication_is_never_negative(tmp_path: Path) -> None:
    import results

    for text in rendered(make_demo(results), tmp_path):
        assert "at most 10%" in text and "40%" in text and "-1%" not in text and "-1 %" not in text


@pytest.mark.parametrize(
    ("speed_up", "wins", "figure"),
    [((1.5, 1.4, 1.6), True, "1.50x"), ((0.82, 0.67, 0.99), False, "0.82x"), ((1.2, 0.9, 1.5), False, None)],
)
@pytest.mark.usefixtures("example")
def test_only_a_significantly_faster_backend_is_highlighted(
    tmp_path: Path, speed_up: tuple[float, float, float], wins: bool, figure: str | None
) -> None:
    import report
    import results

    demo = make_demo(results, speed_up=speed_up)
    assert (report.tables(demo)[0].rows[1].style == "bold") is wins
    for text in rendered(demo, tmp_path):
        assert (figure or "no clear difference") in text and ("1.20x" in text) is False
    page = (tmp_path / "report.html").read_text()
    assert ('class="won"' in page) is wins and ('<tr class="strong">' in page) is wins


@pytest.mark.usefixtures("example")
def test_times_of_a_busy_machine_are_withheld(tmp_path: Path) -> None:
    import report
    import results
    from figures import PANELS
    from matplotlib import pyplot as plt

    demo = make_demo(results, too_busy=True)
    assert report.tables(demo)[0].rows[1].style == "" and "30%" in demo.caution
    for text in rendered(demo, tmp_path):
        assert "withheld" in text and not re.search(r"1\.50|1\.00 ms|\b40 ?%|at most", text)
    assert demo.caution in html.unescape((tmp_path / "report.html").read_text())
    for name in ("step_time", "rounds"):
        axes = plt.figure().add_subplot()
        PANELS[name](axes, demo)
        assert not axes.patches and not axes.lines and "withheld" in axes.texts[0].get_text()
        plt.close()


@pytest.mark.usefixtures("example")
def test_table_and_picture_of_the_pages_are_from_one_run() -> None:
    from PIL import Image

    table = Image.open(ROOT / "docs" / "images" / "demo.png").info["Description"]
    assert table in (ROOT / "docs/performance.md").read_text()


@pytest.mark.usefixtures("example")
def test_unequal_losses_are_found_and_shown() -> None:
    import report
    import results

    losses = [2.0 / step for step in range(1, 61)]
    losses[6] += 1e-12
    demo = make_demo(results, losses)
    assert demo.equal_steps == 6 and len(demo.shortfalls) == 1 and "step 7" in demo.shortfalls[0]
    assert all("step 7" in row[-1] for row in report.summary_rows(demo))


@pytest.mark.usefixtures("example")
def test_low_accuracy_falls_short() -> None:
    import results

    demo = make_demo(results)
    demo.trainings["gloo"].accuracy.append(0.94)
    assert demo.shortfalls == ["gloo: test accuracy 94.0% is below 95%"]


@full
@pytest.mark.timeout(420)
def test_quick_demo_runs_to_the_end(tmp_path: Path) -> None:
    command = (sys.executable, str(EXAMPLE / "demo.py"), "--quick", "--out", str(tmp_path))
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    values = json.loads((tmp_path / "report.json").read_text())
    assert values["equal_steps"] >= 50
    assert {group["op"] for group in values["operations"]} >= {"all_reduce", "broadcast"}
    assert values["trainings"]["hocket"]["accuracy"] == values["trainings"]["gloo"]["accuracy"]
    assert list(values["mixes"]) == ["all libraries", "foreign libraries only"]
    foreign = values["mixes"]["foreign libraries only"]
    libraries = {split_carrier(carrier)[0] for *_, carrier in foreign["chosen"]}  # without the schedule of "mpi/bruck"
    assert libraries <= {"gloo", "mpi"} and min(foreign["seconds"].values()) > 0
    assert "What the mix chose" in ended.stdout


@pytest.mark.usefixtures("example")
def test_failing_child_shows_its_error_and_exits_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import demo

    broken = tmp_path / "train.py"
    broken.write_text("raise ValueError('no digits today')\n")
    monkeypatch.setattr(demo, "HERE", tmp_path)
    monkeypatch.setenv("HOCKET_RECORD_DIR", str(tmp_path / "records"))
    monkeypatch.setattr(sys, "argv", ["demo.py", "--quick", "--out", str(tmp_path / "out")])
    assert demo.main() == 1
    seen = capfd.readouterr()
    assert "no digits today" in seen.out + seen.err and "no report" in seen.out
    assert not (tmp_path / "out").exists()


def marked_processes(mark: str) -> set[int]:
    """Return the running processes that inherited the mark in their environment, in any group or session."""
    found = set()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in environment.read_bytes().split(b"\0"):
                found.add(int(environment.parent.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # the process has ended, or belongs to another user
    return found


@full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_every_process(tmp_path: Path, number: signal.Signals) -> None:
    command = (sys.executable, str(EXAMPLE / "demo.py"), "--out", str(tmp_path / "out"))
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"DEMO_TEST": str(tmp_path)})
    mark = f"DEMO_TEST={tmp_path}"
    try:
        assert driver.stdout
        while b"epoch" not in driver.stdout.readline():  # until both ranks are in the middle of training
            assert driver.poll() is None
        assert len(marked_processes(mark)) >= 4  # driver, launcher, two ranks
        driver.send_signal(number)
        driver.stdout.read()
        assert driver.wait(timeout=30) == 130
        assert not marked_processes(mark) and not (tmp_path / "out").exists()
    finally:
        for pid in marked_processes(mark):
            os.kill(pid, signal.SIGKILL)
        driver.wait()
