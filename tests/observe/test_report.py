"""`hocket observe report`: one file that is whole, needs nothing, and believes no name of a run."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from hocket.errors import InvalidArgument
from hocket.observe import (
    ObservedRun,
    findings,
    open_run,
    operations_of,
    record_run,
    wait_states,
    write_report,
)
from hocket.observe.report.files import busiest_files
from hocket.observe.report.shares import LAYER_COLORS, time_shares

from ..naming import raises
from ..program import hocket
from .fabricated_run import MS, FakeRank, Op, fabricate

pytestmark = pytest.mark.timeout(120)
_VOID = {"meta", "br", "hr", "img", "input", "link"}
_PROGRAM = """
import sys, time
import numpy as np
import hocket as hk
from hocket import observe
with hk.init() as comm:
    for step in range(20):
        with observe.region("<script>alert(1)</script> $x_1$ & co", step=step):
            time.sleep(0.02 if comm.rank == 1 else 0.001)
        comm.all_reduce(np.ones(1000, np.float32), algorithm="ring")
    with open(sys.argv[1] + f"/<b>file {comm.rank}", "wb") as file:
        file.write(bytes(100_000))
"""


class _Page(HTMLParser):
    """Checks that tags are closed in order, and that nothing is loaded or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name not in ("src", "srcset", "data") and (name != "href" or (value or "").startswith("#")), attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ObservedRun:
    folder = tmp_path_factory.mktemp("report")
    (folder / "program.py").write_text(_PROGRAM)
    launch = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(folder / "program.py"), str(folder)]
    assert record_run(launch, folder / "run", interval_s=0.1).exit_code == 0
    return open_run(folder / "run")


def _checked(text: str) -> _Page:
    page = _Page()
    page.feed(text)
    assert page.open == ["html"][: len(page.open)] and "script" not in page.seen
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)
    return page


def test_a_report(run: ObservedRun, tmp_path: Path) -> None:
    write_report(run, tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text()
    page = _checked(text)
    assert {"svg", "table", "h2"} <= page.seen
    (finding, *_) = findings(run)
    assert finding.kind == "straggler" and "rank 1 on" in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; $x_1$ &amp; co" in text and "&lt;b&gt;file 0" in text
    identifiers = re.findall(r'<clipPath id="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))


def test_the_verb(run: ObservedRun, tmp_path: Path) -> None:
    done = hocket("observe", "report", str(run.folder), str(tmp_path / "a.html"), "--json")
    shown = json.loads(done.stdout)
    assert done.returncode == 0 and shown == {
        "file": str(tmp_path / "a.html"), "nbytes": (tmp_path / "a.html").stat().st_size
    }  # fmt: skip
    refused = hocket("observe", "report", str(run.folder), str(tmp_path / "a.pdf"))
    assert refused.returncode == 2 and ".html" in refused.stderr and not (tmp_path / "a.pdf").exists()


def test_wrong_places(run: ObservedRun, tmp_path: Path) -> None:
    with raises(InvalidArgument, names=("a.txt", ".html")):
        write_report(run, tmp_path / "a.txt")
    with raises(InvalidArgument, names="nowhere"):
        write_report(run, tmp_path / "nowhere" / "a.html")


def test_a_report_of_nothing(tmp_path: Path) -> None:
    record_run(["true"], tmp_path / "run")
    write_report(open_run(tmp_path / "run"), tmp_path / "run.html")
    _checked((tmp_path / "run.html").read_text())


def test_shares_of_time() -> None:
    first = FakeRank(
        0, [Op("all_reduce", 1, 10 * MS, 30 * MS), Op("all_reduce", 2, 50 * MS, 90 * MS, is_async=True)],
        io=[(25 * MS, 40 * MS), (60 * MS, 65 * MS)],
    )  # fmt: skip
    second = FakeRank(1, [Op("all_reduce", 1, 20 * MS, 30 * MS), Op("all_reduce", 2, 50 * MS, 100 * MS, is_async=True)])
    run = fabricate([first, second])
    operations = operations_of(run)
    shares = time_shares(run, operations, wait_states(run, operations), [0, 1])
    part_s = shares.seconds / next(iter(shares.by_layer.values())).shape[1]
    seconds = {layer: shares.by_layer[layer].sum(axis=1) * part_s for layer in LAYER_COLORS}
    assert shares.seconds == pytest.approx(0.1) and shares.names == ("rank 0", "rank 1")
    expected = {
        "waiting for a late rank": (0.01, 0.0), "communication": (0.01, 0.01), "I/O": (0.015, 0.0),
        "asynchronous communication alone": (0.035, 0.05), "everything else": (0.02, 0.04),
    }  # fmt: skip
    for layer, times in expected.items():
        assert np.allclose(seconds[layer], times, atol=1e-6), layer
    total = sum(shares.by_layer.values())
    assert total.max() <= 1 + 1e-9


def test_files_are_those_of_the_program(run: ObservedRun) -> None:
    found = busiest_files(run)
    for rank in range(2):
        use = next(each for each in found if f"<b>file {rank}" in each.name)
        assert (use.num_processes, use.written_nbytes, use.read_nbytes) == (1, 100_000, 0) and use.seconds > 0
