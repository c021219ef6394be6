"""Rows by chance for the store, and a process that owns one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.observe import StoreClient
from hocket.observe.store.arrow_batches import arrow_table
from hocket.observe.store.columns import BOOLEAN, INTEGER, TABLE_COLUMNS, TEXT

pa = pytest.importorskip("pyarrow")
ROWS = "/v1/runs/run-1/tables/operations/rows"


def columns_of(table: str, num_rows: int, seed: int = 0, seconds: float = 3.0) -> dict[str, Any]:
    """Rows by chance; times from 0 to `seconds`, durations from microseconds to minutes."""
    draw = np.random.default_rng(seed)
    result: dict[str, Any] = {}
    for name, kind in TABLE_COLUMNS[table].items():
        if kind == TEXT:
            result[name] = np.array([f"{name} {each}" for each in draw.integers(0, 3, num_rows)], object)
        elif kind == INTEGER:
            result[name] = draw.integers(0, 4, num_rows)
        elif kind == BOOLEAN:
            result[name] = draw.random(num_rows) < 0.5
        else:
            result[name] = draw.random(num_rows) * seconds
    if "process" in result:
        result["rank"] = result["process"]
    if "ended_s" in result:
        result["ended_s"] = result["began_s"] + 10 ** draw.uniform(-6, 2, num_rows)
        result["seconds"] = result["ended_s"] - result["began_s"]
    return result


def rows_of(table: str, num_rows: int, seed: int = 0) -> Any:
    return arrow_table(table, columns_of(table, num_rows, seed))


@contextmanager
def served(
    folder: Path, *options: str, variables: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], StoreClient]]:
    """A process that owns a store, and a client."""
    command = [
        sys.executable,
        "-m",
        "hocket.cli",
        "observe",
        "serve",
        "--store",
        str(folder),
        "--port",
        "0",
        "--json",
        *options,
    ]
    environment = {**os.environ, **(variables or {})}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with StoreClient(url, (folder / "token").read_text().strip(), timeout=20) as client:
            yield process, client
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
