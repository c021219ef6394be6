"""The HTTP interface of a store: questions, refusals, attackers, clients, and an owner that is killed."""

from __future__ import annotations

import http.client
import json
import random
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.errors import (
    AuthenticationError,
    HocketError,
    InvalidArgument,
    PeerFailure,
    QueryTimeout,
)
from hocket.observe import StoreClient, query_run, query_stored
from hocket.observe.store.arrow_batches import write_batch
from hocket.observe.store.columns import TABLE_COLUMNS
from hocket.observe.store.owner import StoreOwner
from hocket.observe.store.rollups import WIDTHS_S
from hocket.observe.store.run_tables import run_tables

from ..naming import raises
from ..program import hocket
from .fabricated_run import MS, FakeRank, Op, fabricate
from .stored_rows import ROWS, columns_of, rows_of, served
from .test_store import found_run, submit

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.timeout(180)
_SLOW_SQL = "SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreClient]:
    """A store with a run of 1,000 operations."""
    with served(tmp_path_factory.mktemp("store") / "runs") as (process, client):
        client.ask("/v1/runs/run-1", method="PUT", body=b'{"began_unix_s": 5}')
        client.ask(ROWS, method="POST", body=write_batch(rows_of("operations", 1000)), sender="a", first_row=0)
        yield client
        assert process.poll() is None


def test_questions_equal_sql_over_the_events(store: StoreClient) -> None:
    question = store.ask("/v1/runs/run-1/questions/names", spans=1)
    assert question["columns"] == ["layer", "name", "num_events", "busy_s", "nbytes", "most_s"]
    sql = """SELECT op, sum(greatest(weight, 1))::BIGINT, sum(greatest(weight, 1) * (ended_s - began_s)),
        sum(greatest(weight, 1) * nbytes)::BIGINT, max(ended_s - began_s) FROM operations GROUP BY op ORDER BY 3 DESC"""
    events = store.ask("/v1/runs/run-1/query", method="POST", body=sql.encode())["rows"]
    assert [row[1:3] for row in question["rows"]] == [row[:2] for row in events]
    for found, expected in zip(question["rows"], events, strict=True):
        assert found[3:] == pytest.approx(expected[2:], rel=1e-9)


def test_a_window_has_only_its_spans(store: StoreClient) -> None:
    answer = store.ask("/v1/runs/run-1/questions/over-time", begin_s=1.0, end_s=2.0, spans=16)
    assert (answer["width_s"], answer["begin_s"], answer["end_s"]) == (0.0625, 1.0, 2.0)
    assert {row[0] for row in answer["rows"]} <= set(range(16, 32))
    wide = store.ask("/v1/runs/run-1/questions/over-time", begin_s=-1e8, end_s=1e8)
    assert wide["width_s"] == WIDTHS_S[-1]
    empty = store.ask("/v1/runs/run-1/questions/names", begin_s=5e6, end_s=5e6)
    assert empty["rows"] == []
    for window in ({"begin_s": 2, "end_s": 1}, {"begin_s": "nan"}, {"begin_s": 1e12}, {"spans": 0}, {"spans": "x"}):
        with pytest.raises(InvalidArgument):
            store.ask("/v1/runs/run-1/questions/names", **window)


@pytest.mark.parametrize(
    ("path", "method", "body", "names"),
    [
        ("/v1/runs/none", "GET", b"", "none"),
        ("/v1/runs/run-1/questions/totals?begn_s=1", "GET", b"", ("begn_s", "begin_s")),
        ("/v1/runs/", "GET", b"", "404"),
        ("/v1/runs/none/questions/totals", "GET", b"", "none"),
        ("/v1/runs/run-1/questions/other", "GET", b"", ("other", "over-time")),
        ("/v1/runs/run-1/tables/other/rows?first_row=0", "POST", b"", ("other", "operations")),
        ("/v1/runs/run-1/senders/a/other", "GET", b"", ("other", "operations")),
        ("/v1/runs/..%2Fx", "PUT", b"", "404"),
        ("/v1/runs/-x", "PUT", b"", "-x"),
        ("/v1/runs/x", "PUT", b"[]", "object"),
        ("/v1/runs/x", "PUT", b"{", "JSON"),
        ("/v1/runs/x", "PUT", b"[" * 90_000, ()),
        ("/v1/runs/x", "PUT", b" " * 200_000, "100000"),
        ("/v1/runs/run-1/query", "POST", b"DELETE FROM operations", "DELETE"),
        ("/v1/runs/run-1/query", "POST", b"SELECT 1; SELECT 2", "SELECT"),
        ("/v1/runs/run-1/query", "POST", b"COPY operations TO 'x'", "COPY"),
        ("/v1/runs/run-1/query", "POST", b"SELECT * FROM '/etc/passwd'", "passwd"),
        ("/v1/runs/run-1/query", "POST", b"SELECT * FROM read_text('/etc/passwd')", "passwd"),
        ("/v1/runs/run-1/query", "POST", b"SELECT * FROM read_text('../../token')", "token"),
        ("/v1/runs/run-1/query", "POST", b"ATTACH 'x.db'", "ATTACH"),
        ("/v1/runs/run-1/query", "POST", b"SET allowed_directories=['/']", "SET"),
        ("/v1/runs/run-1/query", "POST", b"SELECT * FROM range(1000000)", "100000"),
        ("/v1/runs/run-1/query?timeout_s=1000", "POST", b"SELECT 1", "1000"),
        ("/v1/runs/run-1/query?timeout_s=0.05", "POST", _SLOW_SQL.encode(), "0.05"),
    ],
)  # fmt: skip
def test_requests_that_are_refused(
    store: StoreClient, path: str, method: str, body: bytes, names: str | tuple[str, ...]
) -> None:
    with raises(InvalidArgument, names=names):
        store.ask(path, method=method, body=body)
    assert store.ask("/v1/health")["process"]


def _raw(store: StoreClient, request: bytes, timeout: float = 10.0) -> bytes:
    with socket.create_connection((store._connection.host, store._connection.port), timeout=timeout) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


def test_strangers_get_nothing(store: StoreClient) -> None:
    url = f"http://{store._connection.host}:{store._connection.port}"
    for token in ("", "x", "a" * 43):
        with StoreClient(url, token) as client, raises(AuthenticationError, names=url):
            client.ask("/v1/runs")
    token = store._headers["authorization"].encode()
    assert _raw(
        store, b"GET /v1/runs HTTP/1.1\r\nhost: evil.example\r\nauthorization: " + token + b"\r\n\r\n"
    ).startswith(b"HTTP/1.1 421")
    assert _raw(store, b"GET /v1/runs HTTP/1.1\r\nhost: localhost\r\n\r\n").startswith(b"HTTP/1.1 401")
    folder = Path(store.ask("/v1/health")["store"])
    assert (folder / "token").stat().st_mode & 0o077 == 0


def test_the_address_of_a_host_is_one_of_its_names(store: StoreClient) -> None:
    token = store._headers["authorization"].encode()
    for host, status in ((b"127.0.0.1:5", b"200"), (socket.gethostname().encode(), b"200"), (b"10.0.0.1", b"421")):
        answer = _raw(store, b"GET /v1/health HTTP/1.1\r\nhost: " + host + b"\r\nauthorization: " + token + b"\r\n\r\n")
        assert answer.split(b" ")[1] == status


def test_an_attacker_on_the_port_changes_nothing(store: StoreClient) -> None:
    draw = random.Random(3)
    token = store._headers["authorization"].encode()
    head = b"POST " + ROWS.encode() + b"?sender=e&first_row=0 HTTP/1.1\r\nhost: localhost\r\nauthorization: " + token
    requests = [
        bytes(draw.randrange(256) for _ in range(300)), b"", b"\r\n" * 1000, b"GET /" + b"a" * 200_000,
        head + b"\r\ncontent-length: 99999999999\r\n\r\n", head + b"\r\ncontent-length: -5\r\n\r\n",
        head + b"\r\ncontent-length: 50\r\n\r\nshort", head + b"\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        head + b"\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
        b"GET /v1/runs HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]  # fmt: skip
    before = store.ask("/v1/runs/run-1")
    for request in requests:
        try:
            answer = _raw(store, request)
        except OSError:
            continue
        assert b" 200 " not in answer.split(b"\r\n")[0], request[:60]
    idle = [socket.create_connection((store._connection.host, store._connection.port)) for _ in range(50)]
    assert store.ask("/v1/runs/run-1") == before
    for each in idle:
        each.close()


def test_answers_are_shared_by_those_who_ask_at_once(store: StoreClient) -> None:
    first = store.ask("/v1/runs/run-1/questions/totals", spans=77)
    store.ask("/v1/runs/run-1", method="PUT")
    rows = rows_of("operations", 10, 5)
    store.ask(ROWS, method="POST", body=write_batch(rows), sender="shared", first_row=0)
    assert store.ask("/v1/runs/run-1/questions/totals", spans=77) == first
    time.sleep(1.1)
    after = store.ask("/v1/runs/run-1/questions/totals", spans=77)
    weight = int(np.maximum(columns_of("operations", 10, 5)["weight"], 1).sum())
    assert after["rows"][0][1] == first["rows"][0][1] + weight


def test_a_run_is_pushed_and_pushed_again(tmp_path: Path, store: StoreClient) -> None:
    run = fabricate(
        FakeRank(rank, [Op("all_reduce", step, step * MS, step * MS + MS // 2, nbytes=64) for step in range(40)],
                 io=[(5 * MS, 6 * MS)], regions={"work": [(0, 40 * MS)]})
        for rank in range(3)
    )  # fmt: skip
    counts = store.push(run, "pushed")
    assert counts == {table: len(next(iter(columns.values()))) for table, columns in run_tables(run).items()}
    assert store.push(run, "pushed") == dict.fromkeys(counts, 0)
    assert {table: count for table, count in store.ask("/v1/runs/pushed")["num_rows"].items() if count} == {
        table: count for table, count in counts.items() if count
    }
    folder = Path(store.ask("/v1/health")["store"])
    for table in TABLE_COLUMNS:
        sql = f"SELECT * FROM {table} ORDER BY ALL"
        found, expected = query_stored(folder, "pushed", sql), query_run(run, sql)
        assert found.columns == expected.columns
        assert _known(found.rows) == _known(expected.rows), table
    store.ask("/v1/runs/pushed/questions/timeline")
    with raises(InvalidArgument, names=("nowhere", "pushed")):
        query_stored(folder, "nowhere", "SELECT 1")
    with pytest.raises(QueryTimeout):
        query_stored(folder, "pushed", _SLOW_SQL, timeout=0.05)


def _known(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows with None for unknown numbers, which DuckDB makes of NaN in memory, not of NaN in files."""
    return [tuple(None if value != value else value for value in row) for row in rows]


def test_a_store_that_is_gone_is_named(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with StoreClient(url, "x" * 30, timeout=0.2) as client, raises(PeerFailure, names=(url, "0.2")):
            client.ask("/v1/runs")
    for wrong in ("127.0.0.1:5", "https://x:5", "http://x", "http://x:99999", "http://x:5/path", ""):
        with raises(InvalidArgument, names=wrong):
            StoreClient(wrong, "x")


def test_the_commands(tmp_path: Path, store: StoreClient) -> None:
    folder = store.ask("/v1/health")["store"]
    recorded = tmp_path / "recorded"
    assert hocket("observe", "run", "--output", str(recorded), "--", "cat", "/etc/hostname").returncode == 0
    done = hocket("observe", "push", str(recorded), folder, "--name", "by-command", "--json")
    assert json.loads(done.stdout)["sent"]["processes"] == json.loads(done.stdout)["stored"]["processes"] == 1
    assert hocket("observe", "push", str(recorded), folder, "--name", "by-command").returncode == 0
    done = hocket("observe", "query", folder, "SELECT program FROM processes", "--run", "by-command", "--json")
    assert json.loads(done.stdout)["rows"] == [["cat /etc/hostname"]]
    for words, names in (
        (("push", str(recorded), str(tmp_path)), "address"),
        (("push", str(recorded), "http://127.0.0.1:5"), "HOCKET_STORE_TOKEN"),
        (("serve", "--store", str(tmp_path / "new"), "--keep", "5 years"), "5 years"),
        (("serve", "--store", str(tmp_path / "new"), "--host", "203.0.113.7"), "203.0.113.7"),
        (("query", folder, "SELECT 1", "--run", "none"), "by-command"),
        (("query", folder, "SELECT 1"), "by-command"),
        (("findings", folder), "--run"),
        (("push", str(recorded), folder, "--name", "a/b"), "a/b"),
        (("push", folder, str(recorded)), str(recorded)),
        (("push", str(recorded), str(recorded)), str(recorded)),
        (("push", str(recorded), "127.0.0.1:5"), "http://"),
        (("serve", "--store", str(tmp_path / "new"), "--name", "x:5"), "x:5"),
    ):
        failed = hocket("observe", *words)
        assert failed.returncode == 2
        assert names in failed.stderr


def test_an_interrupted_owner_ends_well(tmp_path: Path) -> None:
    with served(tmp_path / "store", "--keep", "30d", "--keep-bytes", "1G") as (process, client):
        client.ask("/v1/runs/run-1", method="PUT")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130)
    with pytest.raises((HocketError, http.client.HTTPException)):
        StoreClient(client._url, "x" * 30, timeout=0.1).ask("/v1/runs")


@pytest.mark.parametrize("seed", range(3))
def test_an_owner_that_is_killed_has_all_that_it_answered_for(tmp_path: Path, seed: int) -> None:
    folder, draw = tmp_path / "store", random.Random(seed)
    batches = [rows_of("operations", draw.choice([10, 2000, 60_000]), each) for each in range(4)]
    sent = answered = 0
    with served(folder) as (process, client):
        client.ask("/v1/runs/run-1", method="PUT")
        for number in range(draw.randrange(3, 9)):
            rows = batches[number % 4]
            client.ask(ROWS, method="POST", body=write_batch(rows), sender="a", first_row=sent)
            sent = answered = sent + rows.num_rows
        connection = socket.create_connection((client._connection.host, client._connection.port))
        body = write_batch(batches[2])
        connection.sendall(
            f"POST {ROWS}?sender=a&first_row={sent} HTTP/1.1\r\nhost: localhost\r\nauthorization:"
            f" {client._headers['authorization']}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        time.sleep(draw.uniform(0, 0.1))
        process.kill()
        connection.close()
    with StoreOwner(folder) as owner:
        run = found_run(owner, "run-1")
        found = run.num_rows()["operations"]
        assert answered <= found <= answered + batches[2].num_rows
        assert run.next_row("operations", "a") == found
        rows = batches[2].slice(found - answered)
        assert submit(owner, run, found, rows).next_row == answered + batches[2].num_rows
        assert run.num_rows()["operations"] == answered + batches[2].num_rows
