"""The questions of the store in ClickHouse: its SQL, over the store's own files, gives the same answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hocket.observe.store.arrow_batches import arrow_table
from hocket.observe.store.overview import QUESTIONS, sql_of
from hocket.observe.store.owner import StoreOwner
from hocket.observe.store.rollups import WIDTHS_S

from ..observe.stored_rows import columns_of, rows_of

pytestmark = pytest.mark.timeout(300)
_PROGRAM = """
import json, sys
import clickhouse_connect
client = clickhouse_connect.get_client(interface="chdb")
asked = json.load(sys.stdin)
table = "CREATE TABLE rollups ENGINE = MergeTree ORDER BY (level, bin)"
client.command(f"{table} AS SELECT * FROM file('{asked['files']}', Parquet)")
print(json.dumps([client.query(sql, parameters=window).result_rows for sql, window in asked["questions"]]))
"""


def test_answers_of_clickhouse_are_those_of_duckdb(packages: Path, tmp_path: Path) -> None:
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        run = owner.find_run("run-1")
        assert run is not None
        for seed, table in enumerate(("operations", "io", "transfers", "regions")):
            rows = rows_of(table, 3000, seed)
            owner.submit(run, table, "a", 0, rows, rows.nbytes).result(60)
        columns = columns_of("io", 20)  # their sums do not fit into 64 bits
        columns |= {"nbytes": np.full(20, 1 << 53), "weight": np.full(20, 1 << 8)}
        large = arrow_table("io", columns)
        owner.submit(run, "io", "b", 0, large, large.nbytes).result(60)
        expected, questions = [], []
        for level, begin_s, end_s in ((0, 1.0, 2.0), (2, 0.0, 64.0), (11, 0.0, WIDTHS_S[-1])):
            width_s = WIDTHS_S[level]
            for question in QUESTIONS:
                answer = run.ask(question, begin_s, end_s, max(1, int((end_s - begin_s) / width_s)))
                assert answer.width_s == width_s
                expected.append(answer.rows)
                window = {"level": level, "first": int(begin_s // width_s), "after": int(end_s // width_s)}
                questions.append((sql_of(question, "clickhouse"), {**window, "width_s": width_s}))
        assert any((1 << 63) - 1 in row for row in expected[0])
        asked = {"files": f"{run.folder}/rollups-*/*.parquet", "questions": questions}
        environment = {**os.environ, "PYTHONPATH": str(packages)}
        done = subprocess.run([sys.executable, "-c", _PROGRAM], input=json.dumps(asked), capture_output=True, text=True,
                              env=environment, timeout=120, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    for (sql, _), found, rows in zip(questions, json.loads(done.stdout), expected, strict=True):
        assert len(found) == len(rows) > 0, sql
        for row, own in zip(sorted(found), sorted(map(list, rows)), strict=True):
            assert [each for each in row if isinstance(each, str)] == [each for each in own if isinstance(each, str)]
            numbers = [[each for each in side if not isinstance(each, str)] for side in (row, own)]
            assert numbers[0] == pytest.approx(numbers[1], rel=1e-9, abs=1e-9), sql
