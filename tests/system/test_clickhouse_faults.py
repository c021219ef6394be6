"""A store in ClickHouse whose owner or server is killed, loses its connection, or loses its lease."""

from __future__ import annotations

import http.client
import os
import time
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from hocket.errors import HocketError, InvalidArgument, InvalidState, PeerFailure, ResourceExhausted
from hocket.observe import StoreClient
from hocket.observe.store.arrow_batches import write_batch
from hocket.observe.store.clickhouse.address import parse_address

from ..naming import raises
from ..observe.stored_rows import ROWS, rows_of
from .clickhouse_parts import (
    PASSWORD,
    Server,
    count_rolled_up,
    count_stored,
    difference,
    owned,
    send_rows,
    weight_of,
)

pytestmark = pytest.mark.timeout(300)


def test_a_killed_owner_loses_nothing(server: Server, tmp_path: Path) -> None:
    """Each owner is killed while a sender sends; it sends again what was not answered for."""
    rows = rows_of("operations", 12_000, 1)
    draw = np.random.default_rng(0)
    answered = 0
    for _ in range(4):
        with owned(server, "killed", tmp_path) as (process, store):
            store.ask("/v1/runs/run-1", method="PUT")
            next_row = store.ask("/v1/runs/run-1/senders/a/operations")["next_row"]
            assert next_row >= answered
            answered = next_row
            assert count_stored(store) == answered

            def send(store: StoreClient = store, first: int = answered) -> None:
                nonlocal answered
                store._timeout = 5.0
                while first < rows.num_rows:
                    try:
                        send_rows(store, rows.slice(first, 500), first)
                    except HocketError:
                        return
                    first = answered = min(first + 500, rows.num_rows)

            sender = Thread(target=send)
            sender.start()
            time.sleep(draw.uniform(0.3, 1.5))
            process.kill()
            process.wait(30)
            sender.join(60)
    with owned(server, "killed", tmp_path) as (_, store):
        first = store.ask("/v1/runs/run-1/senders/a/operations")["next_row"]
        assert first >= answered > 0
        for number in range(first, rows.num_rows, 4000):
            send_rows(store, rows.slice(number, min(4000, rows.num_rows - number)), number)
        assert count_stored(store) == rows.num_rows
        assert count_rolled_up(store) == weight_of(rows)


@pytest.mark.usefixtures("in_process")
def test_roll_ups_that_an_owner_has_not_stored_are_made(server: Server, tmp_path: Path) -> None:
    from hocket.observe.store.clickhouse.owner import ClickHouseOwner

    rows, later = rows_of("operations", 500, 1), rows_of("io", 300, 2)
    address = parse_address(server.address("repaired"))
    with ClickHouseOwner(address) as owner:
        owner.add_run("run-1", {})
        run = owner.find_run("run-1")
        assert run is not None
        heard: list[int] = []
        run.on_rollup = lambda rollup, rows: heard.append(rows.num_rows)
        owner.submit(run, "operations", "a", 0, rows, rows.nbytes).result(60)
        assert heard == [500]
        with owner._changed:
            waiting = [owner.submit(run, table, "b", 0, each, each.nbytes)
                       for table, each in (("operations", rows), ("io", later))]  # fmt: skip
        for each in waiting:
            each.result(60)
        expected = run.ask("totals").rows
        count = owner._server.ask("SELECT count() FROM repaired.rollups").rows
        owner._server.remove("rollups", "batch = (SELECT max(batch) FROM repaired.io)", {})
        assert run.ask("totals").rows != expected
    with ClickHouseOwner(address) as owner:
        run = owner.find_run("run-1")
        assert run is not None
        found = run.ask("totals").rows
        assert not difference([list(row) for row in found], [list(row) for row in expected])
        assert owner._server.ask("SELECT count() FROM repaired.rollups").rows == count
        owner._server.do("OPTIMIZE TABLE repaired.rollups FINAL")  # what ClickHouse does some time
        assert owner._server.ask("SELECT count() FROM repaired.rollups").rows < count
        merged = run.ask("totals").rows
        assert not difference([list(row) for row in merged], [list(row) for row in expected])
    with ClickHouseOwner(address) as owner:
        run = owner.find_run("run-1")
        assert run is not None
        assert run.ask("totals").rows == merged


@pytest.mark.usefixtures("in_process")
def test_an_owner_whose_lease_is_over_stores_nothing(server: Server) -> None:
    from hocket.observe.store.clickhouse.owner import ClickHouseOwner

    rows, address = rows_of("operations", 200), parse_address(server.address("lapsed"))
    with ClickHouseOwner(address) as first:
        first.add_run("run-1", {})
        run = first.find_run("run-1")
        assert run is not None
        first.submit(run, "operations", "a", 0, rows, rows.nbytes).result(60)
        with raises(InvalidState, names="lapsed"):
            ClickHouseOwner(address)
        first._lease.give_up()  # as if it had been stopped for a while
        with ClickHouseOwner(address) as second:
            other = second.find_run("run-1")
            assert other is not None
            second.submit(other, "operations", "a", 200, rows, rows.nbytes).result(60)
            with pytest.raises(PeerFailure):
                first.submit(run, "operations", "a", 200, rows, rows.nbytes).result(60)
            with raises(InvalidState, names="lapsed"):
                first._lease.take()
            assert other.query("SELECT count(*) FROM operations", timeout=10, most_rows=9).rows == ((400,),)
        first._take_again()
        deadline = time.monotonic() + 60
        while first._is_stale and time.monotonic() < deadline:
            time.sleep(0.05)
        assert run.next_row("operations", "a") == 400
        first.submit(run, "operations", "a", 400, rows, rows.nbytes).result(60)
        assert run.query("SELECT count(*) FROM operations", timeout=10, most_rows=9).rows == ((600,),)


@pytest.mark.usefixtures("in_process")
def test_a_lease_that_was_given_up_hides_no_later_one(server: Server) -> None:
    from hocket.observe.store.clickhouse.lease import Lease
    from hocket.observe.store.clickhouse.server import ClickHouseServer
    from hocket.observe.store.clickhouse.tables import make_tables

    client = ClickHouseServer(parse_address(server.address("leased")), "hocket-a")
    make_tables(client, "leased")
    first, second = (Lease(client, "leased", ident) for ident in ("hocket-a", "hocket-ab"))
    for _ in range(3):
        first.take()
        assert first.is_held
        with raises(InvalidState, names=("leased", str(os.getpid()))):
            second.take()
        assert not second.is_held
        first.give_up()
        assert not first.is_held
    second.take()
    with raises(InvalidState, names=("leased", str(os.getpid()))):
        first.take()
    assert second.is_held and not first.is_held
    assert client.ask("SELECT count(DISTINCT id), countIf(is_over) FROM leased.owners").rows == ((4, 3),)
    client.close()


@pytest.mark.usefixtures("in_process")
def test_rows_that_wait_while_what_is_stored_is_read_again_are_answered(server: Server) -> None:
    from hocket.observe.store.clickhouse.owner import ClickHouseOwner

    rows, address = rows_of("operations", 300), parse_address(server.address("waiting"))
    parts = [rows.slice(first, 100) for first in (0, 100, 200)]
    with ClickHouseOwner(address) as owner:
        owner.add_run("run-1", {})
        run = owner.find_run("run-1")
        assert run is not None
        with owner._inserting:  # the writer waits, with the first rows
            waiting = [owner.submit(run, "operations", "a", 0, parts[0], parts[0].nbytes)]
            deadline = time.monotonic() + 30
            while not owner._round:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            waiting.append(owner.submit(run, "operations", "a", 100, parts[1], parts[1].nbytes))
            owner._lease.give_up()  # as if it had been stopped for a while
            owner._take_again()
            with pytest.raises(ResourceExhausted):
                owner.submit(run, "operations", "a", 200, parts[2], parts[2].nbytes)
        for each in waiting:
            with pytest.raises(ResourceExhausted):
                each.result(30)
        assert run.next_row("operations", "a") == 0
        for number, part in enumerate(parts):
            assert owner.submit(run, "operations", "a", 100 * number, part, part.nbytes).result(30).num_stored == 100
        assert run.query("SELECT count(*) FROM operations", timeout=10, most_rows=9).rows == ((300,),)


def test_a_server_that_is_lost_and_comes_back(packages: Path, tmp_path: Path) -> None:
    server = Server(packages, tmp_path / "clickhouse")
    rows = rows_of("operations", 2000, 3)
    try:
        with owned(server, "lost", tmp_path) as (_, store):
            store.ask("/v1/runs/run-1", method="PUT")
            send_rows(store, rows.slice(0, 500), 0)
            server.kill()
            for method, path, body in (
                ("GET", "/v1/runs/run-1/questions/totals", b""),
                ("POST", ROWS + "?sender=a&first_row=500", write_batch(rows.slice(500, 500))),
                ("POST", ROWS + "?sender=a&first_row=500", write_batch(rows.slice(500, 500))),
                ("POST", "/v1/runs/run-1/query", b"SELECT 1"),
                ("PUT", "/v1/runs/run-2", b"{}"),
            ):
                status, headers, text = _answer(store, method, path, body)
                assert status in (429, 503), (path, text)
                assert "retry-after" in headers
                assert PASSWORD not in text
            assert store.ask("/v1/health")["problems"]
            server.start()
            send_rows(store, rows.slice(500, 500), 500)
            send_rows(store, rows.slice(1000, 1000), 1000)
            assert count_stored(store) == 2000
            assert count_rolled_up(store) == weight_of(rows)
            assert store.ask("/v1/health")["problems"] == {}
    finally:
        server.kill()


def _answer(store: StoreClient, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(store._connection.host, store._connection.port, timeout=60)
    try:
        connection.request(method, path, body or None, store._headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.usefixtures("in_process")
def test_a_sender_that_is_too_fast_is_told(server: Server) -> None:
    from hocket.observe.store.clickhouse.owner import ClickHouseOwner

    rows, address = rows_of("operations", 100), parse_address(server.address("hurried"))
    with ClickHouseOwner(address, most_queued_nbytes=int(1.5 * rows.nbytes)) as owner:
        owner.add_run("run-1", {})
        run = owner.find_run("run-1")
        assert run is not None
        with owner._inserting:  # the writer waits
            first = owner.submit(run, "operations", "a", 0, rows, rows.nbytes)
            with pytest.raises(ResourceExhausted):
                owner.submit(run, "operations", "a", 100, rows, rows.nbytes)
            assert owner.submit(run, "operations", "a", 0, rows, 0).result(1).is_pending
        assert first.result(60).next_row == 100
        with raises(InvalidArgument, names="-1"):
            owner.submit(run, "operations", "a", -1, rows, rows.nbytes)
    with pytest.raises(ResourceExhausted):
        owner.submit(run, "operations", "a", 100, rows, rows.nbytes)


def test_inserts_whose_answers_are_lost_are_not_stored_twice(server: Server, tmp_path: Path) -> None:
    rows = rows_of("operations", 3000, 4)
    with owned(server, "unanswered", tmp_path) as (_, store):
        store.ask("/v1/runs/run-1", method="PUT")
        for first in range(0, rows.num_rows, 500):
            server.drop_answers(2)  # to the rows and to their roll-ups
            send_rows(store, rows.slice(first, 500), first)
            assert server.num_dropped == 2
        assert count_stored(store) == rows.num_rows
        assert count_rolled_up(store) == weight_of(rows)


def test_a_server_that_is_killed_again_and_again(packages: Path, tmp_path: Path) -> None:
    """A sender goes on meanwhile, as `StoreClient` does."""
    server, rows = Server(packages, tmp_path / "clickhouse"), rows_of("operations", 20_000, 5)
    draw = np.random.default_rng(1)
    try:
        with owned(server, "restarted", tmp_path) as (_, store):
            store.ask("/v1/runs/run-1", method="PUT")
            store._timeout = 120.0
            stops = False

            def send() -> None:
                first = 0
                while not stops and first < rows.num_rows:
                    send_rows(store, rows.slice(first, 250), first)
                    first += 250

            sender = Thread(target=send)
            sender.start()
            for _ in range(3):
                time.sleep(draw.uniform(0.5, 1.5))
                server.kill()
                server.start()
            stops = True
            sender.join(130)
            assert not sender.is_alive()
            first = store.ask("/v1/runs/run-1/senders/a/operations")["next_row"]
            assert count_stored(store) == first > 0
            assert count_rolled_up(store) == weight_of(rows.slice(0, first))
    finally:
        server.kill()
