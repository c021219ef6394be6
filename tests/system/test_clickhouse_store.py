"""A store in ClickHouse: its answers are those of a store of files, and no row is lost or stored twice."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import InvalidArgument, QueryTimeout, RecorderError
from hocket.observe import StoreClient, open_run, query_stored, record_run
from hocket.observe.serve.view_routes import all_views
from hocket.observe.store.arrow_batches import write_batch
from hocket.observe.store.clickhouse.address import parse_address
from hocket.observe.store.columns import SCHEMA_VERSION, TABLE_COLUMNS
from hocket.observe.store.overview import QUESTIONS
from hocket.observe.store.owner import Retention

from ..naming import assert_names, raises
from ..observe.stored_rows import rows_of, served
from ..tier import is_full
from .clickhouse_parts import PASSWORD, Server, count_stored, difference, owned, send_rows, serve_command

pytestmark = pytest.mark.timeout(300)
_PROGRAM = """
import numpy as np
import hocket as hk
from hocket import observe
with hk.init(backends="shm") as comm:
    x = np.ones(1000, np.float32)
    for step in range(200):
        with observe.region("step"):
            comm.all_reduce(x)
            open(__file__).read()
"""
_SINGLE = ("processes", "hosts", "efficiencies", "communicators", "conserved", "links")
"""Tables in which rows by chance would contradict each other."""
_WINDOWS: dict[str, tuple[dict[str, float], ...]] = {
    "recorded": ({}, {"begin_s": 0.1, "end_s": 0.4}),
    "by-chance": ({}, {"begin_s": 0.5, "end_s": 2.25, "spans": 50}, {"begin_s": -1e8, "end_s": 1e8}),
    "empty": ({"begin_s": 5.0, "end_s": 6.0},),
}


def test_answers_are_those_of_a_store_of_files(server: Server, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    record_run([sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(program)], tmp_path / "recorded")
    with owned(server, "compared", tmp_path) as (_, clickhouse), served(tmp_path / "store") as (_, files):
        for store in (clickhouse, files):
            assert store.push(open_run(tmp_path / "recorded"), "recorded")["operations"] == 400
            assert set(store.push(open_run(tmp_path / "recorded"), "recorded").values()) == {0}
            store.ask("/v1/runs/by-chance", method="PUT", body=b'{"began_unix_s": 5, "command": ["x"]}')
            store.ask("/v1/runs/empty", method="PUT")
            for seed, table in enumerate(TABLE_COLUMNS):
                body = write_batch(rows_of(table, 1 if table in _SINGLE else 2000, seed))
                path = f"/v1/runs/by-chance/tables/{table}/rows"
                store.ask(path, method="POST", body=body, sender="a", first_row=0)
        paths = [f"views/{view.name}" for view in all_views()] + [f"questions/{each}" for each in QUESTIONS]
        # Every view of every run, each in the next window of that run; in the full tier in all of them.
        places = [(f"/v1/runs/{run}/{path}", window) for run, windows in _WINDOWS.items()
                  for number, path in enumerate(paths)
                  for window in (windows if is_full() else [windows[number % len(windows)]])]  # fmt: skip
        places += [(f"/v1/runs/{run}{rest}", {}) for run in _WINDOWS for rest in ("", "/rows")] + [("/v1/runs", {})]
        for place, window in places:
            parameters = {**window, "other": "by-chance"} if place.endswith("comparison") else window
            expected = files.ask(place, **parameters)
            assert not difference(clickhouse.ask(place, **parameters), expected), (place, window)
        for table in ("operations", "findings", "matrix"):
            found, expected = (_downloaded(store, f"/v1/runs/by-chance/tables/{table}/parquet", tmp_path)
                               for store in (clickhouse, files))  # fmt: skip
            assert found.schema == expected.schema
            rows = [sorted(each.to_pylist(), key=lambda row: [*row.values()]) for each in (found, expected)]
            assert rows[0] == rows[1]
        for sql in (
            "SELECT op, count(*) AS n, sum(nbytes) FROM operations GROUP BY op ORDER BY op",
            "SELECT o.rank, max(i.seconds) FROM operations AS o JOIN io AS i ON o.rank = i.rank GROUP BY 1 ORDER BY 1",
            "WITH a AS (SELECT * FROM io), b AS (SELECT * FROM a) SELECT count(*) FROM b WHERE file LIKE '%1'",
            "SELECT rank, row_number() OVER (PARTITION BY rank ORDER BY seconds) AS n FROM io ORDER BY 1, 2 LIMIT 9",
            "SELECT 'a''b', 1.5e0, NULL UNION ALL SELECT op, 2, rank FROM operations WHERE op IN ('none', 'it''s')",
        ):
            found, expected = (
                store.ask("/v1/runs/by-chance/query", method="POST", body=sql.encode()) for store in (clickhouse, files)
            )
            assert not difference(found["rows"], expected["rows"]), sql
        trace = [json.loads(_body(each, "/v1/runs/recorded/trace"))["traceEvents"] for each in (clickhouse, files)]
        assert len(trace[0]) == len(trace[1]) > 800


def _body(store: StoreClient, path: str) -> bytes:
    connection = http.client.HTTPConnection(store._connection.host, store._connection.port, timeout=30)
    try:
        connection.request("GET", path, headers=store._headers)
        return connection.getresponse().read()
    finally:
        connection.close()


def _downloaded(store: StoreClient, path: str, folder: Path) -> Any:
    import pyarrow.parquet as pq

    file = folder / "downloaded"
    file.write_bytes(_body(store, path))
    return pq.read_table(file)


def test_rows_are_stored_once_and_in_order(server: Server, tmp_path: Path) -> None:
    rows = rows_of("operations", 900)
    with owned(server, "once", tmp_path) as (_, store):
        store.ask("/v1/runs/run-1", method="PUT")
        for _ in range(2):
            assert send_rows(store, rows.slice(0, 300), 0) == {"next_row": 300, "num_stored": 300, "is_pending": False}
        for first in (301, 600, 150):
            with raises(InvalidArgument, names="300"):
                send_rows(store, rows.slice(0, 300), first)
        assert store.ask("/v1/runs/run-1/senders/a/operations")["next_row"] == 300
        send_rows(store, rows.slice(300, 300), 300)
        send_rows(store, rows.slice(0, 300), 0, sender="b")
        assert count_stored(store) == store.ask("/v1/runs/run-1")["num_rows"]["operations"] == 900
        with raises(InvalidArgument, names=("other", "operations")):
            store.ask("/v1/runs/run-1/tables/other/rows", method="POST", body=b"", sender="a", first_row=0)
        with raises(InvalidArgument, names="run-1"):
            store.ask("/v1/runs/run-1", method="PUT", body=b'{"command": ["another"]}')


def test_queries_of_strangers(server: Server, tmp_path: Path) -> None:
    """What is refused by name in `tests/observe/test_clickhouse_query.py`, and what costs too much."""
    rows = rows_of("operations", 400)
    with owned(server, "asked", tmp_path) as (_, store):
        for run in ("run-1", "run-2"):
            store.ask(f"/v1/runs/{run}", method="PUT")
        send_rows(store, rows, 0)

        def ask(sql: str, run: str = "run-1", **parameters: float) -> list[Any]:
            path = f"/v1/runs/{run}/query"
            return list(store.ask(path, method="POST", body=sql.encode(), **parameters)["rows"])

        assert ask("SELECT count(*) FROM operations", "run-2") == [[0]]
        assert ask("SELECT '{run:String}', '%(run)s', '\\'' FROM operations LIMIT 1") == [
            ["{run:String}", "%(run)s", "'"]
        ]
        names = ask("SELECT * FROM operations LIMIT 1")[0]
        assert len(names) == len(TABLE_COLUMNS["operations"])
        for sql, name in (
            ("SELECT * FROM url('http://127.0.0.1:9')", "url"),
            ("SELECT \"file\"('/etc/passwd')", "file"),
            ("SELECT arrayMap(file, ['/etc/passwd'])", "arrayMap"),
            ("SELECT sender FROM operations", "'sender'"),
            ("SELECT * FROM asked.operations", "asked.operations"),
            ("SELECT op FROM operations WHERE op IN asked.runs", "asked.runs"),
            ("INSERT INTO operations SELECT * FROM operations", "INSERT"),
            ("SELECT 1 SETTINGS readonly = 0", "SETTINGS"),
            ("SELECT a.op FROM operations AS a CROSS JOIN operations AS b", "100"),
            ("SELECT nbytes + op FROM operations", "ILLEGAL_TYPE_OF_ARGUMENT"),
        ):
            with raises(InvalidArgument) as caught:
                ask(sql)
            assert name in str(caught.value), sql
            assert PASSWORD not in str(caught.value)
        slow = "SELECT sum(a.rank * b.rank * c.rank * d.rank) FROM " + " CROSS JOIN ".join(
            f"operations AS {name}" for name in "abcd"
        )
        with raises(InvalidArgument, names="0.5"):
            ask(slow, timeout_s=0.5)
        assert count_stored(store) == 400


def _asked(server: Server, state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hocket.cli", "observe", *arguments]
    done = subprocess.run(command, env=server.environment(state), capture_output=True, text=True, timeout=60)
    assert PASSWORD not in done.stdout + done.stderr
    return done


def test_a_database_is_asked_with_and_without_its_owner(server: Server, tmp_path: Path) -> None:
    rows, address = rows_of("operations", 300), server.address("queried")
    sql = "SELECT op, count(*) AS n FROM operations GROUP BY op ORDER BY op"
    with owned(server, "queried", tmp_path, "--keep-bytes", "100G", "--keep", "30d") as (_, store):
        for run in ("run-1", "run-2"):
            store.ask(f"/v1/runs/{run}", method="PUT")
        send_rows(store, rows, 0)
        expected = store.ask("/v1/runs/run-1/query", method="POST", body=sql.encode())
        answers = [_asked(server, tmp_path, "query", address, "--run", "run-1", sql, "--json")]
    answers.append(_asked(server, tmp_path, "query", address, "--run", "run-1", sql, "--json", "--timeout", "500"))
    for done in answers:
        found = json.loads(done.stdout)
        assert (found["run"], found["columns"], found["rows"]) == (address, expected["columns"], expected["rows"])
        assert sum(row[1] for row in found["rows"]) == 300
    empty = _asked(server, tmp_path, "query", address, "--run", "run-2", "SELECT count(*) FROM operations", "--json")
    assert json.loads(empty.stdout)["rows"] == [[0]]
    for arguments, names in (
        (("query", address, "--run", "run-3", sql), ("run-1", "run-2", "run-3")),
        (("query", address, sql), ("run-1", "run-2")),
        (("query", server.address("nowhere"), "--run", "run-1", sql), (server.address("nowhere"),)),
        (("query", address, "--run", "run-1", "SELECT * FROM queried.senders"), ("queried.senders",)),
        (("query", address, "--run", "run-1", "SELECT count(*) FROM rollups"), ("rollups",)),
        (("query", address.replace("//", "//default:other@"), "--run", "run-1", sql), ("HOCKET_CLICKHOUSE_PASSWORD",)),
        (("findings", address), ("hocket observe query",)),
    ):
        done = _asked(server, tmp_path, *arguments)
        assert done.returncode in (1, 2), arguments
        assert len(done.stderr.splitlines()) == 1, done.stderr
        for name in names:
            assert name in done.stderr


@pytest.mark.usefixtures("in_process")
def test_queries_of_a_database_are_bounded(server: Server) -> None:
    from hocket.observe.store.clickhouse.owner import ClickHouseOwner

    rows, address = rows_of("operations", 400), server.address("bounded")
    with ClickHouseOwner(parse_address(address)) as owner:
        owner.add_run("run-1", {})
        run = owner.find_run("run-1")
        assert run is not None
        owner.submit(run, "operations", "a", 0, rows, rows.nbytes).result(60)
    assert len(query_stored(address, "run-1", "SELECT rank FROM operations", most_rows=400).rows) == 400
    with raises(InvalidArgument, names="399.00"):
        query_stored(address, "run-1", "SELECT rank FROM operations", most_rows=399)
    with raises(QueryTimeout, names="0.2"):
        query_stored(address, "run-1", "SELECT sum(a.rank * b.rank * c.rank * d.rank) FROM " + " CROSS JOIN ".join(
            f"operations AS {name}" for name in "abcd"), timeout=0.2)  # fmt: skip
    with ClickHouseOwner(parse_address(address)) as owner:
        owner._server.do("INSERT INTO bounded.version SELECT 7")
    with raises(RecorderError, names=("bounded", "7")):
        query_stored(address, "run-1", "SELECT 1")


def test_one_process_owns_a_database(server: Server, tmp_path: Path) -> None:
    command, environment = serve_command(server.address("owned")), server.environment(tmp_path)
    with owned(server, "owned", tmp_path) as (process, store):
        refused = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 1
        assert_names(refused.stderr, "owned", str(process.pid))
        store.ask("/v1/runs/run-1", method="PUT")
        process.kill()
        process.wait(30)
        began_s = time.monotonic()
        with owned(server, "owned", tmp_path) as (_, other):  # nobody waits for the lease of a process that is gone
            assert other.ask("/v1/runs")["runs"] == ["run-1"]
        assert time.monotonic() - began_s < 30


def test_servers_that_cannot_be_used(server: Server, tmp_path: Path) -> None:
    secret = "an-other-password"
    for address, password, name in (
        (server.address("refused"), secret, "HOCKET_CLICKHOUSE_PASSWORD"),
        (server.address("refused", f"default:{secret}"), PASSWORD, "HOCKET_CLICKHOUSE_PASSWORD"),
        (f"clickhouse://default:{secret}@127.0.0.1:9/refused", "", "clickhouse://default@127.0.0.1:9/refused"),
        (f"clickhouse://default:{secret}@127.0.0.1/no-name", "", "'no-name'"),
        (f"clickhouse://default:{secret}@127.0.0.1:x/refused", "", "clickhouse://USER@HOST:8123/DATABASE"),
    ):
        began_s = time.monotonic()
        done = subprocess.run(serve_command(address), env=server.environment(tmp_path, password), capture_output=True,
                              text=True, timeout=60)  # fmt: skip
        assert done.returncode in (1, 2)
        assert time.monotonic() - began_s < 30
        assert len(done.stderr.splitlines()) == 1
        assert secret not in done.stdout + done.stderr
        assert_names(done.stderr, name)


@pytest.mark.usefixtures("in_process")
def test_tables_of_another_version_are_refused(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hocket.observe.store.clickhouse.owner import ClickHouseOwner

    address = parse_address(server.address("newer"))
    with ClickHouseOwner(address) as owner:
        owner._server.do("INSERT INTO newer.version SELECT 7")
        blocked = tmp_path / "file"
        blocked.write_text("")
        monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
        with raises(InvalidArgument, names=str(blocked / "hocket" / "stores" / f"127.0.0.1-{server.port}-newer")):
            ClickHouseOwner(address)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with raises(RecorderError, names=("newer", "7", str(SCHEMA_VERSION))):
        ClickHouseOwner(address)


@pytest.mark.usefixtures("in_process")
def test_what_is_old_is_removed_and_senders_go_on(server: Server) -> None:
    from hocket.observe.store.clickhouse.owner import ClickHouseOwner

    rows, address = rows_of("operations", 100), parse_address(server.address("old"))
    with ClickHouseOwner(address, retention=Retention(events_s=0.5)) as owner:
        owner.add_run("run-1", {})
        run = owner.find_run("run-1")
        assert run is not None
        owner.submit(run, "operations", "a", 0, rows, rows.nbytes).result(60)
        totals = run.ask("totals").rows
        time.sleep(0.6)
        owner._forget()
        assert run.num_rows().get("operations", 0) == 0
        assert run.ask("totals").rows == totals  # roll-ups outlive the events
    with ClickHouseOwner(address) as owner:
        run = owner.find_run("run-1")
        assert run is not None
        assert run.next_row("operations", "a") == 100
        assert owner.submit(run, "operations", "a", 0, rows, rows.nbytes).result(60).num_stored == 100
        owner.submit(run, "operations", "a", 100, rows, rows.nbytes).result(60)
        assert run.query("SELECT count(*) FROM operations", timeout=10, most_rows=9).rows == ((100,),)
        owner.remove_run("run-1")
        assert owner.find_run("run-1") is None
        with pytest.raises(InvalidArgument):
            owner.submit(run, "operations", "a", 200, rows, rows.nbytes)
        assert owner.add_run("run-1", {})
        again = owner.find_run("run-1")
        assert again is not None
        assert (again.num_rows(), again.next_row("operations", "a"), again.extent()) == ({}, 0, (0.0, 0.0))
        assert owner.submit(again, "operations", "a", 0, rows, rows.nbytes).result(60).num_stored == 100


@pytest.mark.usefixtures("in_process")
def test_the_oldest_events_go_first(server: Server) -> None:
    """Each round has rows of another size and another table, and rows that are replaced as a whole are not counted."""
    from hocket.observe.store.clickhouse.owner import ClickHouseOwner

    address = parse_address(server.address("limited"))
    rounds = [("operations", 3000), ("io", 2000), ("operations", 1000), ("io", 500)]
    with ClickHouseOwner(address) as owner:
        owner.add_run("run-1", {})
        run = owner.find_run("run-1")
        assert run is not None
        first = {"operations": 0, "io": 0}
        for table, count in rounds:
            rows = rows_of(table, count, count)
            owner.submit(run, table, "a", first[table], rows, rows.nbytes).result(60)
            first[table] += count
        run.replace_tables({"findings": rows_of("findings", 7)})
        sizes = owner._old._sizes()
        totals = run.ask("totals").rows
    nbytes = [count * sizes[table][1] for table, count in rounds]
    for num_kept in (4, 3, 2, 2, 1, 0) if is_full() else (4, 2, 2, 0):
        limit = int(sum(nbytes[4 - num_kept :]) + 0.5 * nbytes[max(3 - num_kept, 0)])
        with ClickHouseOwner(address, retention=Retention(events_nbytes=limit)) as owner:
            run = owner.find_run("run-1")
            assert run is not None
            assert owner._old.are_due
            for _ in range(2):  # what was removed is still in the files
                owner._old._removed_s = float("-inf")
                owner._forget()
            kept = rounds[4 - num_kept :]
            counts = {name: sum(count for table, count in kept if table == name) for name in ("operations", "io")}
            assert {name: run.num_rows().get(name, 0) for name in counts} == counts
            assert {name: run.next_row(name, "a") for name in counts} == first
            found = [list(row) for row in run.ask("totals").rows]
            assert not difference(found, [list(row) for row in totals])  # roll-ups stay
            replaced = owner._server.ask("SELECT count() FROM limited.findings WHERE sender = '~'").rows
            assert replaced == ((7,),)


@pytest.mark.usefixtures("in_process")
def test_roll_ups_that_were_removed_do_not_come_back(server: Server) -> None:
    from hocket.observe.store.clickhouse.owner import ClickHouseOwner

    rows, address = rows_of("operations", 100), parse_address(server.address("removed"))
    with ClickHouseOwner(address, retention=Retention(rollups_s=0.5)) as owner:
        owner.add_run("run-1", {})
        run = owner.find_run("run-1")
        assert run is not None
        owner.submit(run, "operations", "a", 0, rows, rows.nbytes).result(60)
        time.sleep(0.6)
        owner._forget()
        assert run.ask("totals").rows == ()
        assert run.extent() == (0.0, 0.0)
    with ClickHouseOwner(address) as owner:  # without limits
        run = owner.find_run("run-1")
        assert run is not None
        assert run.num_rows() == {"operations": 100}
        assert run.ask("totals").rows == ()
        owner.submit(run, "operations", "a", 100, rows, rows.nbytes).result(60)
        expected = run.ask("totals").rows
        owner._server.remove("rollups", "1", {})  # as if it had been killed before it stored them
    with ClickHouseOwner(address) as owner:
        run = owner.find_run("run-1")
        assert run is not None
        assert run.ask("totals").rows == expected != ()


@pytest.mark.usefixtures("in_process")
def test_tables_that_change_as_a_whole(server: Server) -> None:
    from hocket.observe.store.clickhouse.owner import ClickHouseOwner

    with ClickHouseOwner(parse_address(server.address("replaced"))) as owner:
        owner.add_run("run-1", {})
        run = owner.find_run("run-1")
        assert run is not None
        sql = "SELECT count(*) FROM findings"
        stored = rows_of("findings", 50)
        owner.submit(run, "findings", "a", 0, stored, stored.nbytes).result(60)
        for count in (7, 5, 0, 3):
            run.replace_tables({"findings": rows_of("findings", count)})
            assert run.query(sql, timeout=10, most_rows=9).rows == ((count,),)
            assert run.num_rows()["findings"] == count
            owner._remove_replaced()
        kept = owner._server.ask("SELECT count() FROM replaced.findings WHERE sender = '~'").rows[0][0]
        assert kept == 3
        run.reload()
        assert run.next_row("findings", "a") == 50


def test_a_run_that_goes_on_is_followed(server: Server, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM.replace("range(200)", "range(2000)"))
    recorder = [sys.executable, "-m", "hocket.cli", "observe", "run", "--output", str(tmp_path / "going-on"), "--",
                sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(program)]  # fmt: skip
    deadline = time.monotonic() + 120
    recording = subprocess.Popen(recorder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "going-on" / "run.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with owned(server, "followed", tmp_path, str(tmp_path / "going-on")) as (_, store):
        recording.wait(120)
        while store.ask("/v1/health")["problems"] or not _has_all(store):
            assert time.monotonic() < deadline, store.ask("/v1/health")
            time.sleep(0.2)
    with owned(server, "followed", tmp_path, str(tmp_path / "going-on")) as (_, store):  # it is not loaded again
        assert store.ask("/v1/runs/going-on/rows")["num_rows"]["operations"] >= 4000


def _has_all(store: StoreClient) -> bool:
    try:
        return bool(store.ask("/v1/runs/going-on/rows")["num_rows"].get("operations", 0) >= 4000)
    except InvalidArgument:
        return False
