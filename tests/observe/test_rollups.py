"""Batches of rows on the wire, and roll-ups against loops over events."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket._native import roll_up
from hocket.errors import InvalidArgument, RecorderError
from hocket.observe.store import rollup_database
from hocket.observe.store.arrow_batches import arrow_table, read_batch, schema_of, write_batch
from hocket.observe.store.columns import TABLE_COLUMNS
from hocket.observe.store.overview import QUESTIONS
from hocket.observe.store.owner import StoreOwner
from hocket.observe.store.rollups import NAMES_OF_LAYERS, WIDTHS_S, merged, rollup_of
from hocket.observe.store.senders import SenderRows
from hocket.observe.store.stored_run import StoredRun

from ..naming import raises
from .stored_rows import columns_of, rows_of

pa = pytest.importorskip("pyarrow")
pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("table", TABLE_COLUMNS)
def test_rows_come_back_as_they_were(table: str) -> None:
    rows = rows_of(table, 300)
    assert read_batch(table, write_batch(rows)).equals(rows)
    assert read_batch(table, write_batch(rows.slice(0, 0))).num_rows == 0


def test_wider_and_plain_columns_are_taken() -> None:
    rows = rows_of("io", 50)
    plain = pa.table({name: rows[name].cast(pa.utf8()) if pa.types.is_dictionary(rows[name].type) else rows[name]
                      for name in reversed(rows.column_names)})  # fmt: skip
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_table(plain, max_chunksize=7)
    found = read_batch("io", sink.getvalue().to_pybytes())
    assert found.schema == schema_of("io")
    assert found.to_pylist() == rows.to_pylist()


def _changed(**columns: Any) -> bytes:
    """Rows of io with other columns; None takes one away."""
    rows = rows_of("io", 5)
    kept = {name: rows[name] for name in rows.column_names} | columns
    table = pa.table({name: column for name, column in kept.items() if column is not None})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _compressed() -> bytes:
    sink, rows = pa.BufferOutputStream(), rows_of("io", 5000)
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (_changed(more=pa.array([1] * 5)), ("io", "more", "nbytes")),
        (_changed(nbytes=None), ("nbytes",)),
        (_changed(nbytes=pa.array(["5"] * 5)), ("nbytes", "integer", "string")),
        (_changed(nbytes=pa.array([1, None, 2, 3, 4])), ("nbytes", "nulls")),
        (_changed(nbytes=pa.array([1 << 63] * 5, pa.uint64())), ("io", str(1 << 63))),
        (_compressed(), ()),
        (b"", ()),
        (b"something else", ()),
        (b"\xff\xff\xff\xff" + b"\xff\xff\xff\x7f" + b"\0" * 100, ()),
    ],
)
def test_batches_that_are_refused(body: bytes, names: tuple[str, ...]) -> None:
    with raises(RecorderError, names=names):
        read_batch("io", body)


def test_mutated_batches_are_refused_or_read() -> None:
    original = write_batch(rows_of("io", 40))
    draw = random.Random(11)
    num_refused = 0
    for _ in range(400):
        content = bytearray(original)
        for _ in range(draw.randrange(1, 5)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        if draw.random() < 0.2:
            del content[draw.randrange(len(content)) :]
        try:
            read_batch("io", bytes(content)).to_pylist()
        except RecorderError:
            num_refused += 1
    assert num_refused > 100


def _loop(layer: str, rows: dict[str, Any], level: int) -> dict[tuple[Any, ...], list[float]]:
    """What roll-ups of one level must be, event by event."""
    width = WIDTHS_S[level]
    result: dict[tuple[Any, ...], list[float]] = {}
    for place in range(len(rows["began_s"])):
        began, ended = rows["began_s"][place], rows["ended_s"][place]
        weight = int(rows["weight"][place]) if "weight" in rows else 1
        weight = max(weight, 1)
        nbytes = int(rows["nbytes"][place]) if "nbytes" in rows else 0
        for number in range(int(began // width), int(ended // width) + 1):
            cell = result.setdefault(
                (number, rows["process"][place], rows[NAMES_OF_LAYERS[layer]][place]), [0, 0, 0, 0]
            )
            cell[1] += (min(ended, (number + 1) * width) - max(began, number * width)) * weight
            if number == int(began // width):
                cell[0] += weight
                cell[2] = max(cell[2], ended - began)
                cell[3] += nbytes * weight
    return result


@pytest.mark.parametrize("layer", NAMES_OF_LAYERS)
@pytest.mark.parametrize("seed", range(3))
def test_roll_ups_are_those_of_a_loop_over_events(tmp_path: Path, layer: str, seed: int) -> None:
    rows = columns_of(layer, 300, seed, seconds=200.0)
    run = tmp_path / "run"
    StoredRun.create(run, {})
    stored = StoredRun(run)
    with ThreadPoolExecutor(2) as pool:
        stored.seal(layer, [SenderRows("a", 0, arrow_table(layer, rows))], pool)
    for level in (0, 2, 5):
        width = WIDTHS_S[level]
        answer = stored.ask("timeline", 0.0, 320.0, -int(-320 // width))
        assert answer.width_s == width
        per_name = stored.ask("names", 0.0, 320.0, -int(-320 // width))
        expected = _loop(layer, rows, level)
        by_process: dict[tuple[int, int], list[list[float]]] = {}
        by_name: dict[str, list[list[float]]] = {}
        for (number, process, name), cell in expected.items():
            by_process.setdefault((process, number), []).append(cell)
            by_name.setdefault(name, []).append(cell)
        assert [(row[0], row[3]) for row in answer.rows] == sorted(by_process)
        for row in answer.rows:
            assert row[4:] == pytest.approx(_whole(by_process[row[0], row[3]]), abs=1e-9, rel=1e-9)
        assert {row[1] for row in per_name.rows} == set(by_name)
        for row in per_name.rows:
            assert row[2:] == pytest.approx(_whole(by_name[row[1]]), abs=1e-9, rel=1e-9)
    stored.close()


def _whole(cells: list[list[float]]) -> list[float]:
    """Events, seconds, bytes, longest."""
    columns = list(zip(*cells, strict=True))
    return [sum(columns[0]), sum(columns[1]), sum(columns[3]), max(columns[2])]


def test_clocks_that_jump_make_no_wrong_number() -> None:
    rows = columns_of("operations", 6)
    rows["began_s"] = np.array([0.0, np.nan, -5.0, 1e300, 2.0, np.inf])
    rows["ended_s"] = np.array([np.nan, 1.0, -7.0, 1e301, 1e305, np.inf])
    rows["weight"] = np.ones(6, np.int64)
    found = merged(rollup_of("operations", arrow_table("operations", rows)))
    lowest = found.filter(pa.compute.equal(found["level"], 0))
    assert pa.compute.sum(lowest["count"]).as_py() == 3
    assert pa.compute.sum(lowest["busy_s"]).as_py() == 0.0


def test_rows_that_are_added_while_others_are_merged_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollup_database, "_MOST_PARTIAL_ROWS", 10)
    database = rollup_database.RollupDatabase([], list)
    parts = [rollup_of("io", rows_of("io", 200, seed)) for seed in range(60)]
    with ThreadPoolExecutor(1) as pool:
        adding = pool.submit(lambda: [database.insert(each) for each in parts])
        num_merged = 0
        while not adding.done():
            database.tidy()
            num_merged += 1
        adding.result()
    assert num_merged > 1
    database.tidy()
    (row,) = database.ask("totals", 0.0, 1e6, 4).rows
    expected = [rows_of("io", 200, seed)["weight"].to_numpy() for seed in range(60)]
    assert row[1] == np.maximum(np.concatenate(expected), 1).sum()
    assert database._num_rows == database._database.execute("SELECT count(*) FROM rollups").fetchone()[0]


def test_roll_ups_of_many_cells_are_those_of_numpy() -> None:
    num_rows = 100_000
    draw = np.random.default_rng(5)
    rows = columns_of("operations", num_rows, 5, seconds=1000.0)
    rows["process"] = draw.integers(-(1 << 40), 1 << 40, 500)[draw.integers(0, 500, num_rows)]
    rows["ended_s"] = rows["began_s"]  # each is in one span
    found = rollup_of("operations", arrow_table("operations", rows))
    names = np.unique(rows["op"], return_inverse=True)[1]
    for level in (0, 3):
        own = found.filter(pa.compute.equal(found["level"], level))
        bins = np.floor(rows["began_s"] / WIDTHS_S[level]).astype(np.int64)
        cells, number = np.unique(np.stack([bins, rows["process"], names]), axis=1, return_inverse=True)
        assert own.num_rows == cells.shape[1]
        assert own["bin"].to_numpy().tolist() == cells[0].tolist()
        weight = np.maximum(rows["weight"], 1)
        for name, values in (("count", weight), ("nbytes", rows["nbytes"] * weight)):
            sums = np.zeros(cells.shape[1], np.int64)
            np.add.at(sums, number.ravel(), values)
            assert np.sort(own[name].to_numpy()).tolist() == np.sort(sums).tolist()
    merged_again = merged(pa.concat_tables([found, found]))
    assert merged_again["bin"].to_pylist() == found["bin"].to_pylist()
    assert pa.compute.sum(merged_again["count"]).as_py() == 2 * pa.compute.sum(found["count"]).as_py()


def test_sums_that_are_too_large_are_the_largest_number() -> None:
    rows = columns_of("operations", 4)
    rows["began_s"], rows["ended_s"] = np.zeros(4), np.zeros(4)
    for name in ("process", "rank"):
        rows[name] = np.zeros(4, np.int64)
    rows["op"] = ["all_reduce"] * 4
    rows["weight"] = rows["nbytes"] = np.full(4, (1 << 63) - 1)
    found = rollup_of("operations", arrow_table("operations", rows))
    assert set(found["count"].to_pylist()) == set(found["nbytes"].to_pylist()) == {(1 << 63) - 1}


def test_columns_of_events_must_fit_each_other() -> None:
    ones, numbers = np.ones(3), np.ones(3, np.int64)
    for columns in (
        (ones, np.ones(2), numbers, numbers, np.ones(3, np.int32), None, None),
        (ones, ones, numbers, numbers, np.ones(3, np.int32), None, numbers[:1]),
    ):
        with pytest.raises(InvalidArgument):
            roll_up([columns], 0.0625, 12, 1.0, 1e9)
    with pytest.raises(InvalidArgument):
        roll_up([], 0.0, 12, 1.0, 1e9)


def test_many_names_become_others() -> None:
    rows = columns_of("regions", 5000)
    rows["region"] = np.array([f"step {each}" for each in range(5000)], object)
    names = set(rollup_of("regions", arrow_table("regions", rows))["name"].to_pylist())
    assert len(names) == 2001
    assert "(other names)" in names


def test_levels_that_do_not_fit_into_memory_are_asked_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = [(None, None, 600), (1.0, 2.0, 16), (0.0, 3.0, 60), (0.5, 60.0, 100), (None, None, 1)]
    asked = [(question, *window) for question in QUESTIONS for window in windows]
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = owner.find_run("run-1")
        assert run is not None
        for seed, table in enumerate(NAMES_OF_LAYERS):
            for part in range(3):
                rows = rows_of(table, 2000, 10 * seed + part)
                owner.submit(run, table, "a", 2000 * part, rows, rows.nbytes).result(60)
        expected = [run.ask(question, begin_s, end_s, spans) for question, begin_s, end_s, spans in asked]
        run.close()
        monkeypatch.setattr(rollup_database, "MOST_LOADED_ROWS", 100)
        for (question, begin_s, end_s, spans), wanted in zip(asked, expected, strict=True):
            if begin_s is None:  # the whole run is known to a span of the lowest level in memory
                begin_s, end_s = wanted.begin_s, wanted.end_s
            found = run.ask(question, begin_s, end_s, spans)
            assert (found.width_s, found.columns) == (wanted.width_s, wanted.columns)
            assert len(found.rows) == len(wanted.rows)
            for own, row in zip(sorted(found.rows), sorted(wanted.rows), strict=True):
                for value, other in zip(own, row, strict=True):
                    assert value == (pytest.approx(other, rel=1e-9) if isinstance(other, float) else other)
        # Rows that come later, too.
        rows = rows_of("io", 500, 99)
        owner.submit(run, "io", "b", 0, rows, rows.nbytes).result(60)
        counts = {row[0]: row[1] for row in run.ask("totals", 0.0, 200.0, 4000).rows}
        weights = np.concatenate(
            [np.maximum(rows_of("io", 2000, 20 + part)["weight"].to_numpy(), 1) for part in range(3)]
        )
        assert counts["io"] == weights.sum() + np.maximum(rows["weight"].to_numpy(), 1).sum()
