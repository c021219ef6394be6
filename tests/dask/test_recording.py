"""Messages in the recorder: each leaves one event, in a table and a view of its own, and none among files."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

import dask  # noqa: E402

from hocket import observe  # noqa: E402
from hocket.observe.analysis.stragglers import io_of  # noqa: E402
from hocket.trace import RecorderSnapshot, find_recorders  # noqa: E402

from ..program import run_python  # noqa: E402
from .connections import both_ends, run  # noqa: E402

pytestmark = pytest.mark.timeout(180)
# The counters of all connections that one worker has opened to the other one; a sum with a transpose moves blocks.
_CLUSTER = """
import json, os, sys
import dask.array as da
from distributed import Client, LocalCluster

def counters(dask_worker):
    pools = (*dask_worker.rpc.available.items(), *dask_worker.rpc.occupied.items())
    found = [{"address": address, **comm.extra_info} for address, comms in pools for comm in comms]
    return {"pid": os.getpid(), "connections": found}

if __name__ == "__main__":
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(protocol="hocket://", **options) as cluster, Client(cluster) as client:
        x = client.persist(da.random.default_rng(1).standard_normal((800, 800), chunks=(200, 200)))
        (x + x.T).sum().compute()
        workers = client.run(counters)
    with open(sys.argv[1], "w") as file:
        json.dump(workers, file)
"""
_UNRECORDED = """
import asyncio, os
from distributed.comm import connect, listen
from hocket.errors import RecorderError
from hocket.trace import find_recorders

async def echo(comm):
    for _ in range(10):
        await comm.write(await comm.read())

async def main():
    async with await listen("hocket://127.0.0.1:0", echo) as listener:
        comm = await connect(listener.contact_address)
        for _ in range(10):
            await comm.write(b"x" * 1000)
            await comm.read()
        print(comm.extra_info["num_sent"])
        comm.abort()
    try:
        find_recorders(os.getpid())
    except RecorderError:
        print("no recorder")

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[observe.ObservedRun, dict[str, Any]]:
    """Return the run of a cluster, and the counters of its workers."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "cluster.py").write_text(_CLUSTER)
    command = [sys.executable, str(folder / "cluster.py"), str(folder / "counters.json")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOCKET_RECORDER_BUDGET", "all")
        assert observe.record_run(command, folder / "run").exit_code == 0
    return observe.open_run(folder / "run"), json.loads((folder / "counters.json").read_text())


def _rows(found: observe.ObservedRun, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in observe.query_run(found, sql).rows]


def test_a_recorded_cluster_has_the_messages_that_its_connections_count(
    recorded: tuple[observe.ObservedRun, dict[str, Any]],
) -> None:
    pytest.importorskip("duckdb")
    found, workers = recorded
    pids = {each.snapshot.owner.pid: place for place, each in enumerate(found.processes)}
    places = {address: pids[worker["pid"]] for address, worker in workers.items()}
    num_compared = 0
    for address, worker in workers.items():
        for peer in workers.keys() - {address}:
            own = [each for each in worker["connections"] if each["address"] == peer]
            where = f"process = {places[address]} AND peer = '{peer}'"
            for kind, names in (
                ("send", ("num_sent", "nbytes_sent")),
                ("receive", ("num_received", "nbytes_received")),
            ):
                counts = tuple(sum(each[name] for each in own) for name in names)
                sql = f"SELECT count(*), sum(nbytes) FROM dask WHERE {where} AND kind = '{kind}'"
                assert _rows(found, sql) == [counts]
            ends = _rows(found, f"SELECT DISTINCT path, peer_process FROM dask WHERE {where}")
            assert ends == [("memory", places[peer])]
            num_compared += len(own)
    assert num_compared
    # What one worker has sent has come to the other one.
    both = ", ".join(map(str, places.values()))
    of_workers = f"FROM dask WHERE process IN ({both}) AND peer_process IN ({both})"
    sums = "count(*), sum(nbytes)"
    sent = _rows(
        found, f"SELECT process, peer_process, {sums} {of_workers} AND kind = 'send' GROUP BY ALL ORDER BY ALL"
    )
    came = _rows(
        found, f"SELECT peer_process, process, {sums} {of_workers} AND kind = 'receive' GROUP BY ALL ORDER BY ALL"
    )
    assert sent == came and sent


def test_readers_of_file_io_do_not_count_messages(recorded: tuple[observe.ObservedRun, dict[str, Any]]) -> None:
    found, _ = recorded
    process = max(found.processes, key=lambda each: len(each.events.get("dask", ())))
    only_messages = replace(process, events={"dask": process.events["dask"]})
    assert len(only_messages.events["dask"]) and io_of(only_messages).seconds == 0.0
    pytest.importorskip("duckdb")
    assert _rows(found, "SELECT count(*) FROM io WHERE file LIKE 'hocket:%'") == [(0,)]
    assert _rows(replace(found, processes=(only_messages,)), "SELECT count(*) FROM io") == [(0,)]

    async def program() -> tuple[RecorderSnapshot, RecorderSnapshot]:
        async with both_ends() as (there, here):
            before = _own_recorder()
            for _ in range(100):
                await there.write({"x": bytes(1000)})
                await here.read()
            return before, _own_recorder()

    before, after = run(program)
    assert after.rings["dask"].issued >= before.rings["dask"].issued + 200
    assert after.rings["io"].issued == before.rings["io"].issued
    assert observe.recorded_bytes(after) == observe.recorded_bytes(before)
    assert observe.activity_of(after).num_io == observe.activity_of(before).num_io


def test_the_view_has_what_sql_says(recorded: tuple[observe.ObservedRun, dict[str, Any]], tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    from ..observe.stored_rows import served

    found, _ = recorded
    with served(tmp_path / "store") as (_, client):
        client.push(found, "cluster")
        client.ask("/v1/runs/without", method="PUT")
        shown = client.ask("/v1/runs/cluster/views/dask")
        nothing = client.ask("/v1/runs/without/views/dask")
        files = client.ask("/v1/runs/cluster/views/io")["files"]
    assert not nothing["connections"] and not nothing["cells"]["process"]
    assert not any(each["file"].startswith("hocket:") for each in files)
    sums = "process, peer_process, path, count(*), sum(nbytes) FROM dask"
    rows = _rows(found, f"SELECT {sums} WHERE kind = 'send' AND peer_process >= 0 GROUP BY ALL ORDER BY ALL")
    of_view = [
        (each["process"], each["peer_process"], each["path"], each["num_sent"], each["nbytes_sent"])
        for each in shown["connections"]
        if each["peer_process"] >= 0 and each["num_sent"]
    ]
    assert sorted(of_view) == rows
    ((total, count),) = _rows(found, "SELECT sum(nbytes), count(*) FROM dask")
    assert (sum(shown["cells"]["nbytes"]), sum(shown["cells"]["count"])) == (total, count)
    waited = sum(each["waited_s"] for each in shown["connections"])
    assert waited == pytest.approx(_rows(found, "SELECT sum(seconds) FROM dask WHERE kind = 'send'")[0][0])


def _own_recorder() -> RecorderSnapshot:
    return find_recorders(os.getpid())[0].read()


def test_a_writer_that_waits_and_a_reader_that_is_late_are_seen() -> None:
    late_s, nbytes = 0.3, 1 << 20
    size = 4 * nbytes + 54_321  # of no message of other tests, which this process's recorder has, too

    async def program() -> None:
        with dask.config.set({"distributed.comm.hocket.high-water": nbytes}):
            async with both_ends() as (there, here):
                first = here.extra_info["num_received"]
                writes = [asyncio.ensure_future(there.write({"x": bytes(size)})) for _ in range(3)]
                await asyncio.sleep(late_s)
                for _ in range(3):
                    await here.read()
                await asyncio.gather(*writes)
                assert here.extra_info["num_received"] == first + 3

    run(program)
    snapshot = _own_recorder()
    found = [each for each in observe.events_in(snapshot, 1000) if each.ring == "dask"]
    events = [each for each in found if size < each.nbytes < size + 1000]
    sends, receives = ([each for each in events if each.name == name] for name in ("send", "receive"))
    assert len(sends) == len(receives) == 3
    assert max(each.seconds or 0.0 for each in sends) > 0.8 * late_s  # it has waited at the high-water mark
    assert max(each.seconds or 0.0 for each in receives) > 0.8 * late_s  # the first one lay there
    raw = snapshot.rings["dask"].events
    is_own = (raw["nbytes"] > size) & (raw["nbytes"] < size + 1000)
    assert raw["aux"][is_own].max() > nbytes  # the queue that it found
    assert {each.state for each in events} == {"completed"} and {each.weight for each in events} == {1}
    assert not observe.activity_of(snapshot).in_flight


def test_without_a_recorder_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_UNRECORDED)
    done = run_python(str(tmp_path / "program.py"), environment={**os.environ, "HOCKET_RECORDER": "0"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["10", "no recorder"]
