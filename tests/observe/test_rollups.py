"""Batches of rows on the wire, and roll-ups against loops over events."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.errors import (
    RecorderError,
)
from hocket.observe.store.arrow_batches import arrow_table, read_batch, schema_of, write_batch
from hocket.observe.store.columns import TABLE_COLUMNS
from hocket.observe.store.rollups import NAMES_OF_LAYERS, WIDTHS_S, merged, rollup_of
from hocket.observe.store.stored_run import SenderRows, StoredRun

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


def test_many_names_become_others() -> None:
    rows = columns_of("regions", 5000)
    rows["region"] = np.array([f"step {each}" for each in range(5000)], object)
    names = set(rollup_of("regions", arrow_table("regions", rows))["name"].to_pylist())
    assert len(names) == 2001
    assert "(other names)" in names
