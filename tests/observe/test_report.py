"""`hocket observe report`: one file that has the whole page, needs nothing, and believes no name of a run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

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
from hocket.observe.serve.view_routes import all_views

from ..naming import raises
from ..program import hocket

pytestmark = pytest.mark.timeout(120)
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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ObservedRun:
    folder = tmp_path_factory.mktemp("report")
    (folder / "program.py").write_text(_PROGRAM)
    launch = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(folder / "program.py"), str(folder)]
    assert record_run(launch, folder / "run", interval_s=0.1).exit_code == 0
    return open_run(folder / "run")


def _answers(path: Path) -> dict[str, Any]:
    """What a page of one file has in place of a server, after a look at what it could load or run."""
    text = path.read_text()
    assert text.count("<script") == 2 and "default-src 'none'" in text and "connect-src" not in text
    assert not re.search(r"<(?:img|iframe|object|embed|base)\b", text.partition('<script type="module">')[0])
    loaded = re.findall(r'(?:src|href)="([^"]*)"', text.partition("<script")[0])
    assert all(each.startswith("data:") for each in loaded)
    return dict(json.loads(text.partition('id="answers">')[2].partition("</script>")[0]))


def test_a_report(run: ObservedRun, tmp_path: Path) -> None:
    write_report(run, tmp_path / "run.html")
    answers = _answers(tmp_path / "run.html")
    assert answers["runs"] == {"runs": ["run"], "problems": {}} and answers["results"] == {"results": []}
    shown = {name.rpartition("/")[2] for name in answers if "/views/" in name}
    assert shown == {view.name for view in all_views()} - {"history", "comparison"}
    shown_findings = [(each["kind"], each["text"]) for each in answers["runs/run/views/overview"]["findings"]]
    assert shown_findings == [(each.kind, each.text) for each in findings(run)]
    assert any(kind == "straggler" and "rank 1 on" in text for kind, text in shown_findings)
    names = {each["name"] for each in answers["runs/run/views/overview"]["names"]}
    assert "<script>alert(1)</script> $x_1$ & co" in names
    assert any("<b>file 0" in each["file"] for each in answers["runs/run/views/io"]["files"])


def test_its_numbers_are_those_of_the_run(run: ObservedRun, tmp_path: Path) -> None:
    write_report(run, tmp_path / "run.html")
    answers = _answers(tmp_path / "run.html")
    operations = operations_of(run)
    waits = wait_states(run, operations).rows
    shown = answers["runs/run/views/matrix"]["waits"]
    expected = waits["wait"][waits["process"] != waits["late_process"]].sum()
    assert len(shown) == 1 and sum(shown[0]["cells"]["wait_s"]) == pytest.approx(expected)
    assert shown[0]["ends"] == ["rank 0", "rank 1"]
    summary = answers["runs/run"]
    assert summary["num_processes"] == len(run.processes) and not summary["is_live"]
    assert summary["num_rows"]["operations"] == len(operations.rows)
    problems = answers["runs/run/views/processes"]["problems"]
    missing = [
        place for place, process in enumerate(run.processes)
        for account in (process.io.read, process.io.written) if account is not None and account.missing_nbytes
    ]  # fmt: skip
    assert sorted(each["process"] for each in problems if "were seen" in each["text"]) == missing


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
    run = open_run(tmp_path / "run")
    write_report(run, tmp_path / "run.html")
    shown = _answers(tmp_path / "run.html")["runs/run/views/overview"]
    assert [each["text"] for each in shown["findings"]] == [each.text for each in findings(run)]
    assert all(total["layer"] == "io" for total in shown["totals"])
