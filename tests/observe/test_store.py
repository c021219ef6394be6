"""The store of runs: what is sent is there once, whatever is killed; and strangers get nothing."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hocket.cli._observe_store import place_of_store
from hocket.errors import (
    InvalidArgument,
    InvalidState,
    RecorderError,
    ResourceExhausted,
)
from hocket.observe import Retention, query_stored
from hocket.observe.store.columns import SCHEMA_VERSION, TABLE_COLUMNS
from hocket.observe.store.overview import QUESTIONS, sql_of
from hocket.observe.store.owner import StoreOwner
from hocket.observe.store.segments import find_segments
from hocket.observe.store.stored_run import StoredRun

from ..naming import raises
from .stored_rows import rows_of, served

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.timeout(180)


def submit(
    owner: StoreOwner, run: StoredRun, first: int, rows: Any, sender: str = "a", table: str = "operations"
) -> Any:
    return owner.submit(run, table, sender, first, rows, rows.nbytes).result(30)


def found_run(owner: StoreOwner, name: str) -> StoredRun:
    run = owner.find_run(name)
    assert run is not None
    return run


def test_rows_that_are_sent_twice_are_stored_once(tmp_path: Path) -> None:
    rows = rows_of("operations", 100)
    with StoreOwner(tmp_path / "store") as owner:
        assert owner.add_run("run-1", {})
        assert not owner.add_run("run-1", {})
        assert owner.find_run("another") is None
        run = found_run(owner, "run-1")
        assert submit(owner, run, 0, rows).next_row == 100
        again = submit(owner, run, 0, rows)
        assert (again.next_row, again.num_stored) == (100, 100)
        gap = submit(owner, run, 150, rows)
        assert (gap.next_row, gap.num_stored, gap.is_pending) == (100, 0, False)
        partly = submit(owner, run, 50, rows)
        assert (partly.next_row, partly.num_stored) == (100, 0)
        assert submit(owner, run, 0, rows, sender="b").next_row == 100
        assert run.num_rows() == {"operations": 200}
        counted = run.query("SELECT count(*), sum(nbytes) FROM operations", timeout=10, most_rows=10).rows
        assert counted == ((200, 2 * pa.compute.sum(rows["nbytes"]).as_py()),)
    with StoreOwner(tmp_path / "store") as owner:
        run = found_run(owner, "run-1")
        assert submit(owner, run, 0, rows).num_stored == 100
        assert (
            run.ask("totals").rows[0][1] == 2 * pa.compute.sum(pa.compute.max_element_wise(rows["weight"], 1)).as_py()
        )


def test_small_segments_are_merged_and_nothing_is_lost(tmp_path: Path) -> None:
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = found_run(owner, "run-1")
        before = None
        for number in range(12):
            submit(owner, run, 0, rows_of("operations", 50, number), sender=f"sender-{number}")
        before = {question: run.ask(question) for question in QUESTIONS}
        run.tidy()
        assert len(run.segments()) == 1
        assert {question: run.ask(question) for question in QUESTIONS} == before
        assert run.query("SELECT count(*) FROM operations", timeout=10, most_rows=1).rows == ((600,),)
        submit(owner, run, 0, rows_of("operations", 50, 12), sender="late")
        assert run.num_rows() == {"operations": 650}
    with StoreOwner(tmp_path / "store") as owner:
        run = found_run(owner, "run-1")
        assert run.num_rows() == {"operations": 650}
        assert run.next_row("operations", "sender-3") == 50
        for question, answer in before.items():
            assert len(run.ask(question).rows) >= len(answer.rows)
    assert query_stored(tmp_path / "store", "run-1", "SELECT count(*) FROM operations").rows == ((650,),)


def test_what_a_killed_owner_left_is_mended(tmp_path: Path) -> None:
    """A segment without its roll-up, half a file, and a merge whose old files were not removed."""
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = found_run(owner, "run-1")
        for number in range(9):
            submit(owner, run, 50 * number, rows_of("operations", 50, number))
        totals = run.ask("totals").rows
        folder = run.folder / "operations"
        old = {each.name: each.read_bytes() for each in folder.iterdir()}
        run.tidy()
        assert run.ask("totals").rows == totals
    for name, content in old.items():
        (folder / name).write_bytes(content)
    (folder / "0000000010-0000000010.part").write_bytes(b"half a file")
    for each in (folder.parent / "rollups-operations").iterdir():
        each.unlink()
    assert query_stored(tmp_path / "store", "run-1", "SELECT count(*) FROM operations").rows == ((450,),)
    with StoreOwner(tmp_path / "store") as owner:
        run = found_run(owner, "run-1")
        assert [each.name for each in folder.iterdir()] == ["0000000001-0000000009.parquet"]
        assert run.ask("totals").rows[0][:2] == totals[0][:2]
        assert submit(owner, run, 400, rows_of("operations", 50, 8)).num_stored == 50
        assert run.num_rows() == {"operations": 450}


def test_one_process_owns_a_store(tmp_path: Path) -> None:
    with (
        served(tmp_path / "store") as (process, _),
        raises(InvalidState, names=(str(tmp_path / "store"), str(process.pid))),
    ):
        StoreOwner(tmp_path / "store")
    StoreOwner(tmp_path / "store").close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with raises(InvalidArgument, names="other"):
        StoreOwner(tmp_path / "other")


@pytest.mark.parametrize("version", [1, 9])
def test_a_store_of_another_version_is_refused(tmp_path: Path, version: int) -> None:
    """Both versions are named: by its owner, and by a query without one."""
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
    query_stored(tmp_path / "store", "run-1", "SELECT count(*) FROM problems")
    (tmp_path / "store" / "store.json").write_text(f'{{"format": "hocket store, version {version}"}}')
    with raises(RecorderError, names=("store.json", str(version), str(SCHEMA_VERSION))):
        StoreOwner(tmp_path / "store")
    with raises(RecorderError, names=("store.json", str(version), str(SCHEMA_VERSION))):
        query_stored(tmp_path / "store", "run-1", "SELECT count(*) FROM problems")


def test_tables_that_change_have_another_version() -> None:
    """Whoever changes a table raises `SCHEMA_VERSION`, and then puts the new digest here."""
    digest = hashlib.sha256(json.dumps(TABLE_COLUMNS).encode()).hexdigest()[:16]
    assert (SCHEMA_VERSION, digest) == (3, "0dfcdaa3bd0259a1")


def test_the_store_of_a_run_is_made_anew_when_tables_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place_of_store(None, [tmp_path]) as place, StoreOwner(place):
        before = place
    monkeypatch.setattr("hocket.observe.store.columns.SCHEMA_VERSION", SCHEMA_VERSION + 1)
    with place_of_store(None, [tmp_path]) as place:
        assert place != before and Path(place).parent == tmp_path


def test_retention(tmp_path: Path) -> None:
    with StoreOwner(tmp_path / "store", retention=Retention(events_s=50.0, rollups_s=500.0)) as owner:
        owner.add_run("run-1", {})
        run = found_run(owner, "run-1")
        for number in range(3):
            submit(owner, run, 50 * number, rows_of("operations", 50, number))
        totals = run.ask("totals").rows
        owner._forget()
        assert run.num_rows() == {"operations": 150}
        for each in run.segments():
            os.utime(each.path, (0, time.time() - 100))
    with StoreOwner(tmp_path / "store", retention=Retention(events_s=50.0, rollups_s=500.0)) as owner:
        run = found_run(owner, "run-1")
        owner._forget()
        assert run.num_rows() == {"operations": 0}
        assert run.ask("totals").rows[0][:2] == totals[0][:2]  # roll-ups stay
    with StoreOwner(tmp_path / "store") as owner:
        run = found_run(owner, "run-1")
        assert submit(owner, run, 100, rows_of("operations", 50, 2)).num_stored == 50  # it was there
        assert submit(owner, run, 150, rows_of("operations", 50, 3)).next_row == 200
        assert run.num_rows() == {"operations": 50}
        assert run.ask("totals").rows[0][1] > totals[0][1]


def test_the_oldest_events_go_first(tmp_path: Path) -> None:
    with StoreOwner(tmp_path / "store") as owner:
        for number in range(3):
            owner.add_run(f"run-{number}", {})
            run = found_run(owner, f"run-{number}")
            submit(owner, run, 0, rows_of("operations", 3000, number))
            (segment,) = run.segments()
            os.utime(segment.path, (0, 1e9 + number))
    with StoreOwner(tmp_path / "store", retention=Retention(events_nbytes=2 * segment.nbytes + 5000)) as owner:
        owner._forget()
        assert [found_run(owner, f"run-{number}").num_rows()["operations"] for number in range(3)] == [0, 3000, 3000]
    with raises(InvalidArgument, names=("events_s", "-1")):
        Retention(events_s=-1)


def test_a_full_disk_is_told_and_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hocket.observe.store import stored_run

    rows, real, fails = rows_of("operations", 150_000), stored_run.write_part, [True]

    def write_part(folder: Path, first: int, *more: Any, **options: Any) -> Any:
        if fails and first == 2:
            raise OSError(28, "No space left on device")
        return real(folder, first, *more, **options)

    monkeypatch.setattr(stored_run, "write_part", write_part)
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = found_run(owner, "run-1")
        with pytest.raises(OSError) as caught:  # noqa: PT011
            submit(owner, run, 0, rows)
        assert caught.value.errno == 28
        assert run.num_rows() == {}
        assert not [*(run.folder / "operations").iterdir()]
        fails.clear()
        assert submit(owner, run, 0, rows).next_row == 150_000
        assert run.query("SELECT count(*) FROM operations", timeout=10, most_rows=1).rows == ((150_000,),)


def test_too_much_at_once_is_sent_later(tmp_path: Path) -> None:
    rows = rows_of("operations", 1000)
    with StoreOwner(tmp_path / "store", most_queued_nbytes=rows.nbytes - 1) as owner:
        owner.add_run("run-1", {})
        run = found_run(owner, "run-1")
        with raises(ResourceExhausted):
            submit(owner, run, 0, rows)
        assert submit(owner, run, 0, rows.slice(0, 500)).next_row == 500


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\\b", "-x", "x" * 101, "ä", "a\0b", "a b", "~"])
def test_names_with_path_characters_are_refused(tmp_path: Path, name: str) -> None:
    with StoreOwner(tmp_path / "store") as owner:
        with pytest.raises(InvalidArgument):
            owner.add_run(name, {})
        with pytest.raises(InvalidArgument):
            owner.find_run(name)
        assert owner.run_names() == []
    with pytest.raises(InvalidArgument):
        query_stored(tmp_path / "store", name, "SELECT 1")


def test_a_damaged_segment_is_named(tmp_path: Path) -> None:
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        submit(owner, found_run(owner, "run-1"), 0, rows_of("operations", 50))
    (segment,) = find_segments(tmp_path / "store" / "runs" / "run-1" / "operations")
    segment.path.write_bytes(segment.path.read_bytes()[:-9])
    with raises(RecorderError, names=str(segment.path)):
        query_stored(tmp_path / "store", "run-1", "SELECT count(*) FROM operations")
    assert query_stored(tmp_path / "store", "run-1", "SELECT count(*) FROM io").rows == ((0,),)
    with raises(InvalidArgument, names=str(tmp_path)):
        query_stored(tmp_path, "run-1", "SELECT 1")
    with StoreOwner(tmp_path / "store") as owner:
        with raises(RecorderError, names=str(segment.path)):
            owner.find_run("run-1")
        assert owner.add_run("run-2", {})


def test_questions_are_there_in_both_dialects() -> None:
    for question in QUESTIONS:
        assert "$level" in sql_of(question, "duckdb")
        assert "{level:Int8}" in sql_of(question, "clickhouse")
    with raises(InvalidArgument, names=("other", "totals")):
        sql_of("other", "duckdb")
