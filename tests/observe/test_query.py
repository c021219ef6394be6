"""Runs in SQL: answers against loops over events, and queries that are refused."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hocket.errors import HocketError, InvalidArgument, QueryTimeout, RecorderError
from hocket.observe import (
    ObservedRun,
    export_run,
    open_run,
    operations_of,
    query_run,
    query_tables,
    record_run,
    wait_states,
)
from hocket.observe.store.run_tables import run_tables

from ..naming import raises
from ..program import hocket
from .fabricated_run import MS, FakeRank, Op, fabricate

pytest.importorskip("duckdb")
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def run() -> ObservedRun:
    """Three ranks that wait for each other."""
    draw = np.random.default_rng(3)
    arrivals = np.arange(30)[:, None] * 20 * MS + draw.integers(1, 9 * MS, (30, 3))
    ends = arrivals.max(1) + MS
    return fabricate(
        FakeRank(
            rank,
            [
                *(Op("all_reduce", step, int(own[step]), int(ends[step]), nbytes=64 << step % 3) for step in range(30)),
                Op("send", 1, 700 * MS, None, peer=(rank + 1) % 3),
            ],
            io=[(step * MS, step * MS + 500) for step in range(rank + 1)],
            regions={"it's a region": [(0, 5 * MS)]},
        )
        for rank, own in enumerate(arrivals.T)
    )


def test_answers_are_those_of_loops_over_events(run: ObservedRun) -> None:
    rows = operations_of(run).rows
    found = query_run(run, "SELECT rank, op, nbytes, count(*) AS n, sum(seconds) AS s FROM operations GROUP BY ALL")
    assert found.columns == ("rank", "op", "nbytes", "n", "s") and len(found.rows) == 3 * 4
    for rank, op, nbytes, count, seconds in found.rows:
        own = rows[(rows["process"] == rank) & (rows["nbytes"] == nbytes) & (np.isnan(rows["end"]) == (op == "send"))]
        assert count == len(own)
        assert (seconds is None) == (op == "send")
        if seconds is not None:
            assert seconds == pytest.approx(float((own["end"] - own["begin"]).sum()))
    waits = wait_states(run, operations_of(run)).rows
    found = query_run(run, "SELECT late_rank, sum(wait_s) FROM waits GROUP BY late_rank ORDER BY late_rank")
    expected = np.bincount(waits["late_process"], weights=waits["wait"])
    assert [value for _, value in found.rows] == pytest.approx(expected.tolist())


def test_tables_have_columns_without_rows() -> None:
    empty = fabricate([FakeRank(0)])
    for table in (
        "operations",
        "waits",
        "totals",
        "transfers",
        "io",
        "dask",
        "regions",
        "samples",
        "host_samples",
        "findings",
    ):
        names = [row[0] for row in query_run(empty, f"DESCRIBE {table}").rows]
        assert len(names) > 3 and query_run(empty, f"SELECT * FROM {table}").rows == ()
        types = {row[1] for row in query_run(empty, f"DESCRIBE {table}").rows}
        assert types <= {"BIGINT", "INTEGER", "DOUBLE", "VARCHAR", "BOOLEAN"}, types
    assert query_run(empty, "SELECT count(*) FROM io WHERE file = 'x'").rows == ((0,),)


def test_texts_of_a_run_are_data(run: ObservedRun) -> None:
    found = query_run(run, "SELECT DISTINCT region FROM regions WHERE region LIKE 'it''s%'")
    assert found.rows == (("it's a region",),)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/passwd'", "SELECT * FROM glob('/*')", "COPY io TO '/tmp/io.csv'",
        "ATTACH '/tmp/x.db'", "INSTALL httpfs", "LOAD httpfs",
        "CREATE TABLE mine (a INT)", "DROP TABLE io", "INSERT INTO io SELECT * FROM io", "UPDATE io SET nbytes = 0",
        "SET enable_external_access = true", "PRAGMA threads = 3", "CALL pragma_version()",
        "SELECT 1; DROP TABLE io", "EXPORT DATABASE '/tmp/x'", "SELECT getenv('HOME')", "SELECT * FROM run",
        "SELECT * FROM os", "SELEC 1", "", ";",
        "-- nothing", "SELECT * FROM nowhere", "SELECT file FROM operations",
    ],
)  # fmt: skip
def test_queries_that_are_refused(run: ObservedRun, sql: str) -> None:
    with pytest.raises(InvalidArgument):
        query_run(run, sql)


def test_a_query_that_takes_too_long_is_stopped(run: ObservedRun) -> None:
    began_s = time.monotonic()
    with raises(QueryTimeout, names=("0.3",)):
        query_run(run, "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3",
                  timeout=0.3)  # fmt: skip
    assert time.monotonic() - began_s < 30


def test_answers_that_are_too_large(run: ObservedRun) -> None:
    assert len(query_run(run, "SELECT * FROM range(100)", most_rows=100).rows) == 100
    with raises(InvalidArgument, names=("100",)):
        query_run(run, "SELECT * FROM range(101)", most_rows=100)
    with pytest.raises(HocketError):  # more memory than allowed
        query_run(run, "SELECT list(a.range * 1000 + b.range) FROM range(100000) a, range(3000) b", timeout=20)


def test_the_verb(tmp_path: Path) -> None:
    record_run([sys.executable, "-c", "open('/etc/hostname').read()"], tmp_path / "run")
    assert open_run(tmp_path / "run").problems == ()
    sql = "SELECT kind, nbytes FROM io WHERE file = '/etc/hostname' AND nbytes > 0"
    done = hocket("observe", "query", str(tmp_path / "run"), sql, "--json")
    nbytes = Path("/etc/hostname").stat().st_size
    assert json.loads(done.stdout)["rows"] == [["read", nbytes]]
    shown = hocket("observe", "query", str(tmp_path / "run"), sql)
    assert shown.returncode == 0 and "read" in shown.stdout and str(nbytes) in shown.stdout
    refused = hocket("observe", "query", str(tmp_path / "run"), "DROP TABLE io")
    assert refused.returncode == 2 and "DROP" in refused.stderr and refused.stdout == ""


def test_parquet_files_are_the_tables(run: ObservedRun, tmp_path: Path) -> None:
    export_run(run, tmp_path / "run [1]*.parquet")
    assert query_tables(tmp_path / "run [1]*.parquet", "SELECT count(*) FROM operations").rows == ((93,),)
    export_run(run, tmp_path / "run.parquet")
    for table in run_tables(run):
        row = "CAST(each AS VARCHAR)"
        sql = f"SELECT count(*), md5(string_agg({row}, '|' ORDER BY {row})) FROM {table} each"
        assert query_tables(tmp_path / "run.parquet", sql) == query_run(run, sql), table
    done = hocket("observe", "query", str(tmp_path / "run.parquet"), "SELECT count(*) AS n FROM operations", "--json")
    assert json.loads(done.stdout)["rows"] == [[93]]
    other = f"SELECT * FROM '{tmp_path}/run.parquet/io.parquet'"
    for statement in ("DROP TABLE io", "SELECT * FROM read_csv('/etc/passwd')", other):
        with raises(InvalidArgument):
            query_tables(tmp_path / "run.parquet", statement)


def test_damaged_parquet_files(run: ObservedRun, tmp_path: Path) -> None:
    folder = tmp_path / "run.parquet"
    export_run(run, folder)
    path = folder / "io.parquet"
    whole = path.read_bytes()
    draw = np.random.default_rng(5)
    for damaged in (b"", whole[: len(whole) // 2], b"PAR1" + bytes(100) + b"PAR1", draw.bytes(len(whole))):
        path.write_bytes(damaged)
        with raises(RecorderError, names=str(path)):
            query_tables(folder, "SELECT 1")
    path.unlink()
    with raises(RecorderError, names=(str(path), "missing")):
        query_tables(folder, "SELECT 1")
    for tables in (["../io"], ["a b"], 3, ["io"] * 101, [None]):
        (folder / "tables.json").write_text(json.dumps({"format": "hocket tables, version 1", "tables": tables}))
        with raises(RecorderError, names=str(folder / "tables.json")):
            query_tables(folder, "SELECT 1")
    with raises(RecorderError, names="tables.json"):
        query_tables(tmp_path, "SELECT 1")
