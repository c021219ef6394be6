"""The page's server: who may ask, views against SQL over the same events, runs that go on."""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.errors import InvalidArgument
from hocket.observe import StoreClient, compare_runs, open_run, query_run
from hocket.observe.serve import access
from hocket.observe.serve.requests import RequestRefused
from hocket.observe.store.arrow_batches import arrow_table, write_batch
from hocket.observe.store.columns import TABLE_COLUMNS
from hocket.pipeline import build, simulate

from ..load import scaled
from ..naming import raises
from .fabricated_run import MS, FakeRank, Op, fabricate
from .stored_rows import columns_of, served

pytest.importorskip("fastapi")
pq = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.timeout(180)
_PROGRAM = """
import os, sys, time
import numpy as np
import hocket as hk
from hocket import observe
with hk.init(backends="shm") as comm:
    x = np.ones(1000, np.float32)
    while True:
        with observe.region("step"):
            comm.all_reduce(x)
            open(__file__).read()
        time.sleep(0.005)
        is_over = np.array([os.path.exists(sys.argv[1])], np.float32)
        comm.all_reduce(is_over)
        if is_over[0]:
            break
"""


@pytest.fixture(scope="module")
def run() -> Any:
    """Three ranks with operations, I/O and regions."""
    return fabricate(
        FakeRank(rank, [Op("all_reduce", step, step * MS, step * MS + MS // 2, nbytes=64) for step in range(400)],
                 io=[(5 * MS, 60 * MS)], regions={"work": [(0, 400 * MS)]})
        for rank in range(3)
    )  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, run: Any) -> Iterator[StoreClient]:
    with served(tmp_path_factory.mktemp("serve") / "store") as (_, client):
        client.push(run, "run-1")
        yield client


def _views(store: StoreClient) -> list[str]:
    paths = store.ask("/v1/openapi.json")["paths"]
    return [path.rpartition("/")[2] for path in paths if "/views/" in path]


def _asked(store: StoreClient, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """A request without the token."""
    connection = http.client.HTTPConnection(store._connection.host, store._connection.port, timeout=20)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_every_view_answers_for_every_window(store: StoreClient) -> None:
    names = _views(store)
    assert {"overview", "timeline", "matrix", "breakdown", "links", "processes", "io", "dask", "jobs", "flow"} <= {
        *names
    }
    for name in names:
        path = f"/v1/runs/run-1/views/{name}"
        for window in (
            {},
            {"begin_s": 0.1, "end_s": 0.2},
            {"begin_s": 5e6, "end_s": 6e6},
            {"begin_s": -1e8, "end_s": 1e8},
        ):
            assert isinstance(store.ask(path, **window), dict)
        for wrong in ({"spans": 0}, {"spans": 10**9}, {"begin_s": "nan"}, {"begin": 1}):
            with pytest.raises(InvalidArgument):
                store.ask(path, **wrong)
    with raises(InvalidArgument, names="404"):
        store.ask("/v1/runs/run-1/views/none")
    with raises(InvalidArgument, names="nowhere"):
        store.ask("/v1/runs/nowhere/views/overview")


def test_an_empty_run_has_all_views(store: StoreClient) -> None:
    store.ask("/v1/runs/empty", method="PUT")
    for name in _views(store):
        store.ask(f"/v1/runs/empty/views/{name}")
    empty = store.ask("/v1/runs/empty")
    assert (empty["num_processes"], empty["num_lost"]) == (0, None)
    assert store.ask("/v1/runs/empty/views/timeline")["clock_error_s"] is None


def test_the_overview_and_the_timeline_have_what_sql_says(store: StoreClient, run: Any) -> None:
    overview = store.ask("/v1/runs/run-1/views/overview")
    for total in overview["totals"]:
        count, busy_s, most_s = query_run(
            run, f"SELECT count(*), sum(ended_s - began_s), max(ended_s - began_s) FROM {total['layer']}"
        ).rows[0]
        assert total["num_events"] == count
        assert (total["busy_s"], total["most_s"]) == pytest.approx((busy_s, most_s))
    timeline = store.ask("/v1/runs/run-1/views/timeline", begin_s=0.1, end_s=0.2)
    sql = "SELECT count(*) FROM operations WHERE began_s < 0.2 AND NOT ended_s < 0.1"
    of_operations = [lane for lane in timeline["events"]["lane"] if timeline["lanes"][lane]["layer"] == "operations"]
    assert len(of_operations) == query_run(run, sql).rows[0][0]
    assert (timeline["begin_s"], timeline["end_s"]) == (0.1, 0.2)
    assert timeline["clock_error_s"] == query_run(run, "SELECT max(clock_error_s) FROM hosts").rows[0][0]
    whole = store.ask("/v1/runs/run-1/views/timeline")["cells"]
    assert sum(whole["count"]) == sum(total["num_events"] for total in overview["totals"])


def test_the_overview_tells_jobs_apart(store: StoreClient) -> None:
    """Each of two jobs has a collective that rank 1 does not come to."""
    store.push(
        fabricate(
            FakeRank(rank, [Op("all_reduce", 0, (10 + job) * MS, None)] if rank == 0 else [],
                     communicators={1: ("world", "0-1", rank)}, variables={"MASTER_PORT": str(29500 + job)})
            for job in range(2) for rank in range(2)
        ),
        "two-jobs",
    )  # fmt: skip
    found = store.ask("/v1/runs/two-jobs/views/overview")
    assert found["num_jobs"] == 2
    assert {(each["job"], each["missing"]) for each in found["unfinished"]} == {(0, "1"), (1, "1")}
    assert store.ask("/v1/runs/run-1/views/overview")["num_jobs"] == 1


def test_a_comparison_is_that_of_the_command(store: StoreClient) -> None:
    def training(seed: int, factor: float) -> Any:
        draw = np.random.default_rng(seed)
        lengths = draw.uniform(1, 2, (2, 137)) * factor * MS
        return fabricate(
            FakeRank(rank, [Op("all_reduce", step, step * 10 * MS, step * 10 * MS + int(lengths[rank, step]), nbytes=64)
                            for step in range(137)], regions={"work": [(step * 10 * MS, step * 10 * MS + 5 * MS)
                                                                       for step in range(50 + 7 * rank)]})
            for rank in range(2)
        )  # fmt: skip

    before, after = training(1, 1.0), training(2, 1.5)
    store.push(before, "before")
    store.push(after, "after")
    found = store.ask("/v1/runs/after/views/comparison", other="before")["rows"]
    expected = {each.what: each for each in compare_runs(before, after)}
    assert {row["what"] for row in found} == {*expected}
    for row in found:
        wanted = expected[row["what"]]
        assert (row["before_s"], row["after_s"], row["ratio"]) == pytest.approx(
            (wanted.before_s, wanted.after_s, wanted.ratio)
        )
        assert (row["low"], row["high"]) == pytest.approx((wanted.low, wanted.high))
        assert row["verdict"] == wanted.verdict
    with raises(InvalidArgument, names="nowhere"):
        store.ask("/v1/runs/after/views/comparison", other="nowhere")
    history = store.ask("/v1/runs/after/views/history")
    assert {"before", "after"} <= {row["run"] for row in history["runs"]}


def test_a_step_of_a_pipeline_is_simulated_with_its_own_times(store: StoreClient) -> None:
    schedule = build("1f1b", 4, 8)
    timeline = simulate(schedule)
    spans: list[dict[str, list[tuple[int, int]]]] = [{} for _ in range(4)]
    flat = [(rank, action) for rank, actions in enumerate(schedule.actions) for action in actions]
    for (rank, action), begin, end in zip(flat, timeline.begin_s, timeline.end_s, strict=True):
        spans[rank][f"some pass {action}"] = [(int(begin * MS), int(end * MS))]
    for each in spans:
        each["training step"] = [(0, 40 * MS)]
    store.push(fabricate(FakeRank(rank, regions=each) for rank, each in enumerate(spans)), "pipeline")
    step = store.ask("/v1/runs/pipeline/views/pipelines")["step"]
    assert step["problem"] == ""
    assert step["measured_s"] == pytest.approx(timeline.makespan_s * 1e-3)
    assert step["simulated_s"] == pytest.approx(timeline.makespan_s * 1e-3)
    assert (step["measured_bubble"], step["simulated_bubble"]) == pytest.approx((timeline.bubble(), timeline.bubble()))
    key = lambda each: (each["rank"], each["action"])  # noqa: E731
    for measured, simulated in zip(sorted(step["measured"], key=key), sorted(step["simulated"], key=key), strict=True):
        assert key(measured) == key(simulated)
        assert (measured["began_s"], measured["ended_s"]) == pytest.approx((simulated["began_s"], simulated["ended_s"]))


def test_what_a_page_offers_to_keep(store: StoreClient, run: Any, tmp_path: Path) -> None:
    token = store._headers["authorization"]
    status, headers, content = _asked(store, "GET", "/v1/runs/run-1/tables/operations/parquet", authorization=token)
    assert status == 200 and "run-1-operations.parquet" in headers["content-disposition"]
    (tmp_path / "kept.parquet").write_bytes(content)
    kept = pq.read_table(tmp_path / "kept.parquet")
    assert kept.num_rows == 1200 and set(kept.column_names) == {*TABLE_COLUMNS["operations"]}
    status, _, content = _asked(store, "GET", "/v1/runs/run-1/trace?begin_s=0.1&end_s=0.2", authorization=token)
    events = [event for event in json.loads(content)["traceEvents"] if event["ph"] == "X"]
    sql = "SELECT count(*) FROM operations WHERE began_s < 0.2 AND NOT ended_s < 0.1"
    assert sum(event["cat"] == "operations" for event in events) == query_run(run, sql).rows[0][0]
    for path in ("tables/none/parquet", "trace?begin_s=nan"):
        assert _asked(store, "GET", f"/v1/runs/run-1/{path}", authorization=token)[0] == 400
    assert _asked(store, "GET", "/v1/runs/run-1/tables/operations/parquet")[0] == 401


def test_many_processes_are_shown_by_host(store: StoreClient) -> None:
    ranks = [FakeRank(rank, [Op("all_reduce", 0, 0, 50 * MS)], host=f"host-{rank % 4}") for rank in range(100)]
    store.push(fabricate(ranks), "many")
    timeline = store.ask("/v1/runs/many/views/timeline")
    assert [(lane["label"], lane["num_processes"]) for lane in timeline["lanes"]] == [
        (f"host-{n}", 25) for n in range(4)
    ]
    assert sum(timeline["cells"]["count"]) == 100 and timeline["events"] is None
    cells = {
        "job": [0],
        "rank": [1],
        "peer_rank": [99],
        "sent_nbytes": [64],
        "num_messages": [2],
        "modelled_nbytes": [0.0],
    }
    body = write_batch(arrow_table("matrix", {name: np.array(column) for name, column in cells.items()}))
    store.ask("/v1/runs/many/tables/matrix/rows", method="POST", body=body, sender="more", first_row=0)
    time.sleep(1.1)  # answers are shared for a second
    (matrix,) = store.ask("/v1/runs/many/views/matrix")["jobs"]
    assert matrix["is_by_host"] and sorted(matrix["ends"]) == [f"host-{n}" for n in range(4)]


def test_a_browser_shows_the_token_once(store: StoreClient) -> None:
    token = store._headers["authorization"]
    status, headers, _ = _asked(store, "POST", "/v1/session", authorization=token)
    cookie = headers["set-cookie"]
    assert status == 200 and "HttpOnly" in cookie and "SameSite=Strict" in cookie
    session = cookie.partition(";")[0]
    here = f"http://{store._connection.host}:{store._connection.port}"
    assert _asked(store, "GET", "/v1/runs", cookie=session)[0] == 200
    assert _asked(store, "GET", "/v1/runs", cookie=session, origin=here)[0] == 200
    assert _asked(store, "GET", "/v1/runs", cookie="hocket-session=x")[0] == 401
    assert _asked(store, "GET", "/v1/runs")[0] == 401
    for method, headers in (
        ("GET", {"origin": "http://evil.example"}), ("GET", {"sec_fetch_site": "cross-site"}), ("PUT", {}),
        ("PUT", {"origin": "null"}),
    ):  # fmt: skip
        assert _asked(store, method, "/v1/runs/other", cookie=session, **headers)[0] == 403
    assert _asked(store, "PUT", "/v1/runs/by-cookie", cookie=session, origin=here)[0] == 200


def test_a_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(access, "monotonic", lambda: now)
    checked = access.Access("x" * 43, ("127.0.0.1",))
    shown = {"method": "POST", "headers": [(b"host", b"127.0.0.1:1"), (b"authorization", b"Bearer " + b"x" * 43)]}
    cookie = checked.open_session(shown, "/", False).partition(";")[0]
    scope = {"method": "GET", "headers": [(b"host", b"127.0.0.1:1"), (b"cookie", cookie.encode())]}
    checked.check(scope, needs_token=True)
    now += access.SESSION_S - 1
    checked.check(scope, needs_token=True)
    now += 2
    with pytest.raises(RequestRefused) as refused:
        checked.check(scope, needs_token=True)
    assert refused.value.status == 401


@pytest.mark.parametrize("code", ["y" * 43, ""])
def test_a_code_is_refused_when_it_is_late_wrong_or_empty(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    now = 1000.0
    monkeypatch.setattr(access, "monotonic", lambda: now)
    checked = access.Access("x" * 43, ("127.0.0.1",), code)

    def shown(text: str) -> dict[str, Any]:
        headers = [(b"host", b"127.0.0.1:1"), (b"authorization", f"Bearer {text}".encode())]
        return {"method": "POST", "headers": headers}

    for text in ("", "y", "y" * 44, "Y" * 43, *([""] if code else ["y" * 43])):
        with pytest.raises(RequestRefused):
            checked.open_session(shown(text), "/", False)
    with pytest.raises(RequestRefused):
        checked.check(shown(code), needs_token=True)
    now += access.CODE_S
    with pytest.raises(RequestRefused) as refused:
        checked.open_session(shown(code), "/", False)
    assert refused.value.status == 401
    now -= 1
    if code:
        assert checked.open_session(shown(code), "/", False)


def test_the_page_is_served_without_the_token_and_nothing_else_is(store: StoreClient) -> None:
    status, headers, content = _asked(store, "GET", "/")
    assert status in (200, 501)
    if status == 501:  # built without Node.js
        assert b"make page" in content
    else:
        assert "default-src 'none'" in headers["content-security-policy"]
    for path in ("/../token", "/..%2ftoken", "/assets/../../access.py", "/none", "/index.html/", "/%00"):
        assert _asked(store, "GET", path)[0] in (400, 404)
    assert _asked(store, "GET", "/", host="evil.example")[0] == 421
    assert _asked(store, "GET", "/v1")[0] == 401


class _Follower:
    """A page: its connections are killed again and again, as those of laptops are."""

    def __init__(self, client: StoreClient, run: str) -> None:
        self._client, self._run = client, run
        self.counts: dict[tuple[str, str, int], int] = {}
        self.last = ""
        self.is_over = False
        self.whole = ""

    def follow(self, seconds: float) -> None:
        """Take what comes in a time."""
        connection = http.client.HTTPConnection(
            self._client._connection.host, self._client._connection.port, timeout=10
        )
        headers = {**self._client._headers, **({"last-event-id": self.last} if self.last else {})}
        connection.request("GET", f"/v1/runs/{self._run}/live", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200
        deadline, kind, ident = time.monotonic() + seconds, "", ""
        while time.monotonic() < deadline and (line := answer.fp.readline()):
            name, _, text = line.decode().strip().partition(": ")
            if name == "event":
                kind = text
            elif name == "id":
                ident = text
            elif name == "data" and kind == "tick":
                self._take(json.loads(text))
                self.last = ident
            elif name == "data" and kind == "over":
                self.is_over, self.whole = True, json.loads(text)["run"]
                break
        connection.close()

    def _take(self, tick: dict[str, Any]) -> None:
        if tick["is_whole"]:
            self.counts.clear()
        for lane in tick["lanes"]:
            for span, count in zip(lane["spans"], lane["count"], strict=True):
                self.counts[lane["label"], lane["layer"], span] = count


def test_a_connection_that_is_killed_again_and_again_doubles_and_loses_nothing(store: StoreClient) -> None:
    draw = random.Random(5)
    store.ask("/v1/runs/live", method="PUT")
    store.ask("/v1/runs/live/progress", method="POST", now_s=0)
    assert store.ask("/v1/runs/live")["is_live"]
    sent, ends = 0, threading.Event()
    total = np.zeros(1, np.int64)

    def feed() -> None:
        nonlocal sent
        with StoreClient(store._url, store._headers["authorization"].partition(" ")[2]) as client:
            while not ends.is_set():
                columns = columns_of("io", 50, sent, seconds=1.0)
                columns["began_s"] = sent / 500 + columns["began_s"] / 10
                columns["ended_s"] = columns["began_s"] + 0.01
                body = write_batch(arrow_table("io", columns))
                client.ask("/v1/runs/live/tables/io/rows", method="POST", body=body, sender="a", first_row=sent)
                sent += 50
                total[0] += int(np.maximum(columns["weight"], 1).sum())
            client.ask("/v1/runs/live/progress", method="POST", is_over="true")

    feeder = threading.Thread(target=feed)
    feeder.start()
    page = _Follower(store, "live")
    try:
        for _ in range(20):
            page.follow(draw.uniform(0.02, 0.3))
    finally:
        ends.set()
        feeder.join(60)
    page.follow(scaled(20))
    assert page.is_over
    assert sum(page.counts.values()) == total[0]
    assert not store.ask("/v1/runs/live")["is_live"]


def test_a_run_that_goes_on_is_followed_and_then_whole(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    hocket = [sys.executable, "-m", "hocket.cli"]
    recording = subprocess.Popen(
        [*hocket, "observe", "run", "--output", str(tmp_path / "run"), "--page", "--",
         *hocket, "run", "-n", "2", str(tmp_path / "program.py"), str(tmp_path / "over")],
        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert recording.stderr is not None
        line = next(line for line in recording.stderr if "#token=" in line)
        url, _, token = line.split()[-1].partition("/#token=")
        with StoreClient(url, token) as client:
            deadline = time.monotonic() + scaled(20)
            while "run-live" not in client.ask("/v1/runs")["runs"]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            summary = client.ask("/v1/runs/run-live")
            assert summary["is_live"]
            page = _Follower(client, "run-live")
            page.follow(2.0)
            operations = sum(count for (_, layer, _), count in page.counts.items() if layer == "operations")
            assert operations > 20
            assert {"regions", "io", "operations"} <= {layer for _, layer, _ in page.counts}
            partial = open_run(tmp_path / "run")  # also of use while it goes on
            assert partial.description.exit_code is None and len(partial.processes) >= 2
    finally:
        (tmp_path / "over").touch()
        recording.communicate(timeout=scaled(60))
    assert recording.returncode == 0
    assert open_run(tmp_path / "run").description.exit_code == 0


def test_a_recorded_run_is_loaded_once(tmp_path: Path) -> None:
    from hocket.observe import record_run

    record_run(["cat", "/etc/hostname"], tmp_path / "run")
    for _ in range(2):
        with served(tmp_path / "run" / "store", str(tmp_path / "run")) as (_, client):
            deadline = time.monotonic() + scaled(30)
            while client.ask("/v1/runs")["runs"] != ["run"] or not client.ask("/v1/runs/run")["num_processes"]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            summary = client.ask("/v1/runs/run")
            assert summary["command"] == "cat /etc/hostname" and not summary["is_live"]
            assert client.ask("/v1/health")["problems"] == {}
