"""What a hostile reading of the store found: each of it was a loss, a wrong number or a way to stop the owner."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from hocket.errors import InvalidArgument, RecorderError
from hocket.observe import Retention, StoreClient, serve_store
from hocket.observe.serve import running
from hocket.observe.serve.shared_answers import SharedAnswers
from hocket.observe.store import segments as segments_module
from hocket.observe.store import stored_run
from hocket.observe.store.arrow_batches import arrow_table, read_batch, schema_of, write_batch
from hocket.observe.store.owner import StoreOwner
from hocket.observe.store.rollups import merged, rollup_of, rollup_schema

from ..naming import raises
from .fabricated_run import MS, FakeRank, Op, fabricate
from .stored_rows import ROWS, columns_of, rows_of, served
from .test_store import found_run, submit

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.timeout(120)


def with_column(table: str, name: str, values: Any, num_rows: int = 5) -> Any:
    columns = columns_of(table, num_rows)
    columns[name] = np.array(values)
    return arrow_table(table, columns)


def test_a_query_that_explains_writes_nothing(tmp_path: Path) -> None:
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = found_run(owner, "run-1")
        submit(owner, run, 0, rows_of("operations", 50))
        (segment,) = run.segments()
        before = segment.path.read_bytes()
        for target in (segment.path, run.folder / "run.json", run.folder / "new"):
            for sql in (f"EXPLAIN ANALYZE COPY (SELECT 1) TO '{target}'", f"EXPLAIN COPY (SELECT 1) TO '{target}'"):
                with raises(InvalidArgument, names="EXPLAIN"):
                    run.query(sql, timeout=5, most_rows=5)
        with pytest.raises(InvalidArgument):
            run.query(f"SELECT * FROM read_text('{run.folder}/run.json')", timeout=5, most_rows=5)
        assert segment.path.read_bytes() == before


def test_answers_of_many_bytes_are_refused(tmp_path: Path) -> None:
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        with pytest.raises(InvalidArgument):
            found_run(owner, "run-1").query(
                "SELECT repeat('x', 100000) || range FROM range(15000)", timeout=60, most_rows=100_000
            )


def test_who_gives_up_waiting_does_not_stop_the_writer(tmp_path: Path) -> None:
    rows = rows_of("operations", 50)
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = found_run(owner, "run-1")
        for number in range(3):
            assert owner.submit(run, "operations", "a", 50 * number, rows, rows.nbytes).cancel()
        assert submit(owner, run, 150, rows).next_row == 200


def test_two_runs_of_one_name_are_not_mixed(tmp_path: Path) -> None:
    run = fabricate([FakeRank(0, [Op("all_reduce", 0, 0, MS)])])
    other = replace(run, description=replace(run.description, began_s=run.description.began_s + 1))
    with served(tmp_path / "store") as (_, client):
        assert client.push(run, "train")["operations"] == 1
        assert client.push(run, "train")["operations"] == 0
        with raises(InvalidArgument, names="train"):
            client.push(other, "train")


@pytest.mark.parametrize("description", [{"format": "x"}, {"description": 1}, {"next_rows": []}])
def test_a_description_can_say_anything(tmp_path: Path, description: dict[str, Any]) -> None:
    with StoreOwner(tmp_path / "store") as owner:
        assert owner.add_run("run-1", description)
    with StoreOwner(tmp_path / "store") as owner:
        assert found_run(owner, "run-1").description == description


def test_a_damaged_run_does_not_stop_the_retention_of_others(tmp_path: Path) -> None:
    with StoreOwner(tmp_path / "store") as owner:
        for name in ("damaged", "good"):
            owner.add_run(name, {})
            submit(owner, found_run(owner, name), 0, rows_of("operations", 50))
        (segment,) = found_run(owner, "good").segments()
    os.utime(segment.path, (0, 1e9))
    damaged = tmp_path / "store" / "runs" / "damaged" / "senders.json"
    damaged.write_text('{"format": "hocket senders, version 1", "next_rows": [1], "numbers": {}, "forgotten": {}}')
    with StoreOwner(tmp_path / "store", retention=Retention(events_s=100.0)) as owner:
        owner._forget()
        assert found_run(owner, "good").num_rows() == {"operations": 0}
        assert [str(damaged) in text for text in owner.problems.values()] == [True]
        with raises(RecorderError, names=str(damaged)):
            owner.find_run("damaged")


def test_what_one_sends_does_not_fail_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of("operations", 50)
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = found_run(owner, "run-1")
        real = run.seal

        def seal(table: str, pieces: Any, pool: Any) -> None:
            if any(each.sender == "bad" for each in pieces):
                raise ValueError("it cannot be written")
            real(table, pieces, pool)

        monkeypatch.setattr(run, "seal", seal)
        done = {sender: owner.submit(run, "operations", sender, 0, rows, rows.nbytes) for sender in ("a", "bad", "b")}
        assert done["a"].result(30).next_row == done["b"].result(30).next_row == 50
        with pytest.raises(RecorderError):
            done["bad"].result(30)
        monkeypatch.undo()
        assert submit(owner, run, 0, rows, sender="bad").next_row == 50


def _stream(table: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def test_streams_with_traps_are_refused() -> None:
    rows = rows_of("io", 5)
    with_null = pa.DictionaryArray.from_arrays(pa.array([0] * 5, pa.int32()), pa.array(["x", None]))
    place = rows.column_names.index("file")
    with raises(RecorderError, names="file"):
        read_batch("io", _stream(rows.set_column(place, "file", with_null)))
    with pytest.raises(RecorderError):
        read_batch("io", _stream(rows, metadata_version=pa.ipc.MetadataVersion.V4))
    with raises(RecorderError, names=("file", "100000")):
        read_batch("io", write_batch(with_column("io", "file", ["x" * 100_000] * 5)))
    for name in ("nbytes", "weight"):
        with raises(RecorderError, names=(name, str(1 << 62))):
            read_batch("io", write_batch(with_column("io", name, [1, 2, 3, 4, 1 << 62])))


def test_long_names_and_long_events_take_little_memory() -> None:
    rows = with_column("regions", "region", np.array(["y" * 60_000] * 300, object), 300)
    assert rollup_of("regions", rows).nbytes < 20 << 20
    columns = columns_of("operations", 50_000)
    columns["ended_s"] = columns["began_s"] + 3.99
    assert rollup_of("operations", arrow_table("operations", columns)).nbytes < 30 << 20


def test_bytes_that_overflow_are_the_largest_number() -> None:
    columns = columns_of("io", 2)
    columns["nbytes"], columns["weight"] = np.array([1 << 53, 8]), np.array([1 << 40, 2])
    columns["kind"] = np.array(["large", "small"], object)
    found = merged(rollup_of("io", arrow_table("io", columns))).to_pylist()
    assert {each["nbytes"] for each in found if each["name"] == "large"} <= {0, 1 << 62}
    assert {each["nbytes"] for each in found if each["name"] == "small"} <= {0, 16}


@pytest.mark.parametrize("seed", range(3))
def test_merged_sums_are_those_of_python_or_the_largest_number(seed: int) -> None:
    """Of cells with random numbers, and with numbers whose sums are next to the largest one."""
    draw = random.Random(seed)
    count = 300
    values = {name: [draw.choice((draw.randrange(1 << draw.randrange(1, 63)), (1 << 62) - draw.randrange(2), 1 << 62))
                     for _ in range(count)] for name in ("count", "nbytes")}  # fmt: skip
    bins = [draw.randrange(100) for _ in range(count)]
    columns: dict[str, Any] = {field.name: [0] * count for field in rollup_schema()}
    columns |= {"layer": ["io"] * count, "name": ["read"] * count, "bin": bins, **values}
    found = merged(pa.table(columns, schema=rollup_schema()))
    assert found["bin"].to_pylist() == sorted(set(bins))
    num_saturated = 0
    for name, numbers in values.items():
        sums = dict.fromkeys(bins, 0)
        for place, number in zip(bins, numbers, strict=True):
            sums[place] += number
        expected = [min(sums[place], (1 << 63) - 1) for place in sorted(sums)]
        assert found[name].to_pylist() == expected
        num_saturated += expected.count((1 << 63) - 1)
    assert 0 < num_saturated < 2 * len(set(bins))


def test_sums_of_a_run_are_those_of_python_or_the_largest_number(tmp_path: Path) -> None:
    """However they came together: in one batch, by merging segments or memory, or in the answer."""
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = found_run(owner, "run-1")
        totals = {"small": 0, "large": 0}
        for number in range(9):
            columns = columns_of("io", 4)
            columns["began_s"], columns["ended_s"] = np.arange(4.0), np.arange(4.0) + 0.01
            columns["process"] = np.zeros(4, np.int64)
            columns["kind"] = np.array(["small", "small", "large", "large"], object)
            columns["nbytes"] = np.array([number, 1 << 40, 1 << 53, 1 << 53])
            columns["weight"] = np.array([1, 3, 1 << 8, 1 << 8])
            for name, nbytes, weight in zip(columns["kind"], columns["nbytes"], columns["weight"], strict=True):
                totals[name] += int(nbytes) * int(weight)
            submit(owner, run, 4 * number, arrow_table("io", columns), table="io")
        expected = {name: min(total, (1 << 63) - 1) for name, total in totals.items()}
        assert expected["large"] == (1 << 63) - 1 and expected["small"] == totals["small"]

        def sums() -> dict[str, int]:
            return {row[1]: row[4] for row in run.ask("names").rows}

        assert sums() == expected
        run.tidy()
        assert len(run._rollup_segments["io"]) == 1
    with StoreOwner(tmp_path / "store") as owner:
        run = found_run(owner, "run-1")
        assert sums() == expected
        cells = {(row[1], row[0]) for row in run.ask("over-time").rows}
        assert len(cells) == 4


def test_names_that_do_not_occur_are_no_names() -> None:
    columns = columns_of("regions", 9000)
    columns["region"] = np.array([f"step {each}" for each in range(9000)], object)
    rows = arrow_table("regions", columns)
    assert set(rollup_of("regions", rows.slice(8000, 3))["name"].to_pylist()) == {"step 8000", "step 8001", "step 8002"}
    assert len(write_batch(rows.slice(8000, 3))) < 4000


def test_a_window_over_many_long_events_has_wider_spans(tmp_path: Path) -> None:
    columns = columns_of("regions", 20_000)
    columns["began_s"], columns["ended_s"] = np.zeros(20_000), np.full(20_000, 5000.0)
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = found_run(owner, "run-1")
        submit(owner, run, 0, arrow_table("regions", columns), table="regions")
        answer = run.ask("totals", 0.0, 5000.0, 90_000)
        assert answer.rows[0][1:3] == (20_000, pytest.approx(1e8))
        assert answer.width_s >= 16
        assert run.ask("totals", 0.01, 37.51, 600).width_s == 0.25


def test_merging_does_not_make_events_younger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = found_run(owner, "run-1")
        with monkeypatch.context() as clock:
            clock.setattr(segments_module, "time", lambda: 1e9)
            for number in range(9):
                submit(owner, run, 50 * number, rows_of("operations", 50, number))
        for each in [*run.segments(), *run._rollup_segments["operations"]]:
            os.utime(each.path, (0, 1e9))
    with StoreOwner(tmp_path / "store", retention=Retention(events_s=3600.0)) as owner:
        run = found_run(owner, "run-1")
        run.tidy()
        assert len(run.segments()) == 1
        submit(owner, run, 450, rows_of("operations", 50, 9))
        run.tidy()
        assert len(run.segments()) == 2  # years lie between them
        owner._forget()
        assert run.num_rows() == {"operations": 50}


def test_a_full_disk_does_not_lose_what_is_to_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_text(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = found_run(owner, "run-1")
        submit(owner, run, 0, rows_of("operations", 50))
        with monkeypatch.context() as disk:
            disk.setattr(stored_run, "write_text", write_text)
            with pytest.raises(OSError) as caught:  # noqa: PT011
                run.forget(time.time() + 10, 0.0)
        assert caught.value.errno == 28
        assert run.num_rows() == {"operations": 50}
        run.forget(time.time() + 10, 0.0)
        assert run.num_rows() == {"operations": 0}


def test_roll_ups_that_were_forgotten_do_not_come_back(tmp_path: Path) -> None:
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = found_run(owner, "run-1")
        for number in range(9):
            submit(owner, run, 50 * number, rows_of("operations", 50, number))
        for each in run._rollup_segments["operations"][:4]:
            os.utime(each.path, (0, 1e9))
    with StoreOwner(tmp_path / "store") as owner:
        run = found_run(owner, "run-1")
        run.forget(0.0, 2e9 - 5e8)
        left = run.ask("totals").rows
        run.tidy()
    with StoreOwner(tmp_path / "store") as owner:
        assert found_run(owner, "run-1").ask("totals").rows == left


def test_a_segment_that_cannot_be_published_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, real, num_left = rows_of("operations", 150_000), os.replace, [2]

    def replace_file(source: Any, target: Any) -> None:
        if str(target).endswith(".parquet"):
            num_left[0] -= 1
            if num_left[0] < 0:
                raise OSError(28, "No space left on device")
        real(source, target)

    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = found_run(owner, "run-1")
        with monkeypatch.context() as disk:
            disk.setattr(segments_module.os, "replace", replace_file)
            with pytest.raises(OSError):  # noqa: PT011
                submit(owner, run, 0, rows)
        assert submit(owner, run, 0, rows.slice(0, 99_000)).next_row == 99_000
    with StoreOwner(tmp_path / "store") as owner:
        run = found_run(owner, "run-1")
        assert run.num_rows() == {"operations": 99_000}
        assert run.next_row("operations", "a") == 99_000


def test_a_terminated_owner_seals_and_leaves_no_address(tmp_path: Path) -> None:
    with served(tmp_path / "store") as (process, client):
        client.ask("/v1/runs/run-1", method="PUT")
        client.ask(ROWS, method="POST", body=write_batch(rows_of("operations", 10)), sender="a", first_row=0)
        assert (tmp_path / "store" / "address").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert not (tmp_path / "store" / "address").exists()


def test_who_holds_connections_loses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_NEXT_REQUEST_S", 1.0)
    end, urls = Event(), Queue[str]()
    thread = Thread(target=serve_store, args=(tmp_path / "store",),
                    kwargs={"port": 0, "on_ready": urls.put, "until": end})  # fmt: skip
    thread.start()
    try:
        host, port = urls.get(timeout=60).removeprefix("http://").split(":")
        held = [socket.create_connection((host, int(port)), timeout=20) for _ in range(3)]
        held[1].sendall(b"GET /v1/runs HTTP/1.1\r\nhost: localhost\r\n")
        held[2].sendall(b"GET /v1/runs HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert held[2].recv(1000).startswith(b"HTTP/1.1 401")
        for each in held:
            try:
                while each.recv(1000):
                    pass
            except ConnectionResetError:
                pass
            each.close()
        token = (tmp_path / "store" / "token").read_text().strip()
        with StoreClient(f"http://{host}:{port}", token, timeout=20) as client:
            assert client.ask("/v1/runs") == {"runs": [], "problems": {}}
            time.sleep(1.5)  # the connection is closed meanwhile, and made again
            assert client.ask("/v1/runs") == {"runs": [], "problems": {}}
    finally:
        end.set()
        thread.join(60)
    assert not thread.is_alive()


def test_an_answer_is_computed_once_however_long_it_takes() -> None:
    num_computed = 0

    async def compute() -> bytes:
        nonlocal num_computed
        num_computed += 1
        await asyncio.sleep(0.3)
        return b"x" * 100

    async def main() -> None:
        shared = SharedAnswers(0.05, 1000)
        first = asyncio.ensure_future(shared.get("a", compute))
        await asyncio.sleep(0.1)
        first.cancel()  # who asked first goes away
        found = await asyncio.gather(*(shared.get("a", compute) for _ in range(5)))
        assert set(found) == {b"x" * 100}
        assert num_computed == 1
        await asyncio.sleep(0.1)
        for number in range(30):
            await shared.get(number, compute) if number < 2 else None
        assert shared._nbytes <= 1000

        async def fail() -> bytes:
            raise ValueError

        for _ in range(2):
            with pytest.raises(ValueError):  # noqa: PT011
                await shared.get("b", fail)

    asyncio.run(main())


def test_a_description_may_not_be_deep(tmp_path: Path) -> None:
    with served(tmp_path / "store") as (_, client):
        with pytest.raises(InvalidArgument):
            client.ask("/v1/runs/x", method="PUT", body=b'{"a": ' * 50 + b"1" + b"}" * 50)
        client.ask("/v1/runs/x", method="PUT", body=json.dumps({"a": {"b": [1]}}).encode())
        assert client.ask("/v1/runs/x")["description"] == {"a": {"b": [1]}}
        assert client.ask("/v1/health")["problems"] == {}
        assert schema_of("io").names
