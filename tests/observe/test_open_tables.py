"""Folders of tables on the page: a run that was exported shows what the run itself shows; odd folders are refused."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import observe
from hocket.errors import RecorderError

from .. import program
from ..load import scaled
from ..naming import assert_names, raises
from .fabricated_run import MS, FakeRank, Op, fabricate
from .opened_files import opened

pytest.importorskip("fastapi")
from hocket.observe.serve.view_routes import all_views
from hocket.observe.store.table_folders import check_tables, describe_tables, read_tables

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.timeout(180)
_PROGRAM = """
import numpy as np
import hocket as hk
from hocket import observe
with hk.init(backends="shm") as comm:
    for step in range(20):
        with observe.region("forward", step=step):
            comm.all_reduce(np.ones(1000, np.float32))
    open(f"saved-{comm.rank}", "wb").write(bytes(1000))
"""


def _recorded(folder: Path) -> observe.ObservedRun:
    (folder / "program.py").write_text(_PROGRAM)
    launch = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", "program.py"]
    done = program.hocket("observe", "run", "--output", "run", "--", *launch, folder=folder)
    assert done.returncode == 0, done.stderr
    return observe.open_run(folder / "run")


def _until_loaded(client: observe.StoreClient, run: str, table: str, num_rows: int) -> None:
    deadline = time.monotonic() + scaled(60)
    while (
        run not in client.ask("/v1/runs")["runs"]
        or client.ask(f"/v1/runs/{run}/rows")["num_rows"].get(table, 0) < num_rows
    ):
        assert time.monotonic() < deadline, client.ask("/v1/health")
        time.sleep(0.05)


def test_a_run_that_was_exported_shows_what_the_run_shows(tmp_path: Path) -> None:
    run = _recorded(tmp_path)
    tables = tmp_path / "tables.parquet"
    observe.export_run(run, tables)
    last = [*json.loads((tables / "tables.json").read_text())["tables"]][-1]
    (num_rows,) = observe.query_tables(tables, f"SELECT count(*) FROM {last}").rows[0]
    with opened(tmp_path / "run", tables) as (_, _, client):
        for name in ("run", "tables.parquet"):
            _until_loaded(client, name, last, num_rows)
        one, other = (client.ask(f"/v1/runs/{name}") for name in ("run", "tables.parquet"))
        assert one["num_rows"] == other["num_rows"] and one["num_rows"]["operations"] >= 40
        assert (one["command"], one["began_unix_s"]) == (other["command"], other["began_unix_s"])
        assert "program.py" in other["command"]
        for view in all_views():
            if view.name not in ("history", "comparison"):  # of all runs
                views = [client.ask(f"/v1/runs/{name}/views/{view.name}") for name in ("run", "tables.parquet")]
                assert views[0] == views[1], view.name
    assert not (tables / "store").exists()


def test_tables_of_another_tool_show_what_they_have(tmp_path: Path) -> None:
    """Flight records have columns of their own; what they do not have is empty."""
    run = fabricate(FakeRank(rank, [Op("all_reduce", 0, MS, 9 * MS, nbytes=64)]) for rank in range(2))
    observe.export_run(run, tmp_path / "run.flight")
    tables = tmp_path / "imported.parquet"
    assert observe.import_records([tmp_path / "run.flight"], tables)["operations"] == 2
    with opened(tables) as (_, _, client):
        _until_loaded(client, "imported.parquet", "operations", 2)
        for view in all_views():
            assert client.ask(f"/v1/runs/imported.parquet/views/{view.name}") is not None
        (total,) = client.ask("/v1/runs/imported.parquet/views/overview")["totals"]
        assert (total["layer"], total["num_events"]) == ("operations", 2)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    run = fabricate(FakeRank(rank, [Op("all_reduce", 0, MS, 9 * MS, nbytes=64)]) for rank in range(2))
    observe.export_run(run, tmp_path / "tables.parquet")
    return tmp_path / "tables.parquet"


def _without_a_column(rows: Any) -> Any:
    return rows.drop_columns(["nbytes"])


def _of_another_type(rows: Any) -> Any:
    return rows.set_column(rows.column_names.index("nbytes"), "nbytes", pa.array(["many", "few"]))


def _with_a_null(rows: Any) -> Any:
    return rows.set_column(rows.column_names.index("nbytes"), "nbytes", pa.array([1, None]))


def _too_large(rows: Any) -> Any:
    return rows.set_column(rows.column_names.index("nbytes"), "nbytes", pa.array([1, 1 << 60]))


@pytest.mark.parametrize("change", [_without_a_column, _of_another_type, _with_a_null, _too_large])
def test_columns_and_values_are_checked(tables: Path, change: Callable[[Any], Any]) -> None:
    path = tables / "operations.parquet"
    assert sum(rows.num_rows for table, rows in read_tables(tables) if table == "operations") == 2
    pq.write_table(change(pq.read_table(path)), path)
    with raises(RecorderError, names=(str(path), "nbytes", "operations")):
        for _ in read_tables(tables):
            pass


def test_files_that_are_damaged_or_missing(tables: Path) -> None:
    path = tables / "io.parquet"
    whole, draw = path.read_bytes(), np.random.default_rng(5)
    for damaged in (b"", whole[: len(whole) // 2], b"PAR1" + bytes(100) + b"PAR1", draw.bytes(len(whole))):
        path.write_bytes(damaged)
        with raises(RecorderError, names=str(path)):
            check_tables(tables)
        done = program.hocket("open", str(tables))
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
        assert_names(done.stderr, str(path))
    for _ in range(200):
        content = bytearray(whole)
        for place in draw.integers(0, len(content), 3):
            content[place] = draw.integers(256)
        path.write_bytes(content)
        with suppress(RecorderError):
            check_tables(tables)
            for _ in read_tables(tables):
                pass
    path.unlink()
    with raises(RecorderError, names=str(path)):
        check_tables(tables)


def test_what_a_folder_says_of_its_run_is_not_believed(tables: Path) -> None:
    content = json.loads((tables / "tables.json").read_text())
    assert describe_tables(tables)["command"] == ["program"]
    for odd in (None, [], {"command": "x", "began_unix_s": "y"}, {"command": [1, {}], "began_unix_s": 10**400},
                {"began_unix_s": float("nan")}):  # fmt: skip
        (tables / "tables.json").write_text(json.dumps({**content, "run": odd}))
        assert describe_tables(tables) == {"command": [], "began_unix_s": None}
    for names in (["io"] * 101, ["../io"], 7):
        (tables / "tables.json").write_text(json.dumps({**content, "tables": names}))
        with raises(RecorderError, names="tables.json"):
            check_tables(tables)
    (tables / "tables.json").write_text(json.dumps({**content, "tables": ["slices"]}))
    with raises(RecorderError, names="slices"):
        check_tables(tables)
