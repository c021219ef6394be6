"""A ClickHouse server, an owner of its database, and whether answers of two stores are the same."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hocket.observe import StoreClient
from hocket.observe.store.arrow_batches import write_batch

from ..observe.stored_rows import ROWS

PASSWORD = "geheim/1"
"""Has a sign that addresses need to quote."""
_TZ = "America/New_York"
"""A server has a time zone of its own."""
_SERVER = Path(__file__).with_name("chdb_server.py")


class Server:
    """chDB behind ClickHouse's HTTP interface; it can be killed, and started again at the same port.

    Args:
        packages: where chDB and `clickhouse_connect` are.
        folder: of the database.
    """

    def __init__(self, packages: Path, folder: Path) -> None:
        self.packages, self._folder, self.port = packages, folder, 0
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(self.packages), "CHDB_PASSWORD": PASSWORD, "TZ": _TZ}
        command = [sys.executable, str(_SERVER), str(self._folder), str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait(30)
        self._process.stdout.close()

    def drop_answers(self, count: int) -> None:
        """Have so many inserts carried out, whose answers are lost."""
        (self._folder / "drop-answers").write_text(str(count))
        self._asked = count

    @property
    def num_dropped(self) -> int:
        return self._asked - int((self._folder / "drop-answers").read_text())

    def address(self, database: str, user: str = "default") -> str:
        return f"clickhouse://{user}@127.0.0.1:{self.port}/{database}"

    def environment(self, state: Path, password: str = PASSWORD) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(self.packages)]))
        return {
            **os.environ, "PYTHONPATH": path, "HOCKET_CLICKHOUSE_PASSWORD": password, "XDG_STATE_HOME": str(state)
        }  # fmt: skip


def serve_command(address: str, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "hocket.cli", "observe", "serve", "--store", address, "--port", "0", "--json"), *options
    ]  # fmt: skip


@contextmanager
def owned(
    server: Server, database: str, state: Path, *options: str
) -> Iterator[tuple[subprocess.Popen[str], StoreClient]]:
    """A process that owns a database, and a client."""
    command = serve_command(server.address(database), *options)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=server.environment(state))
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, "the owner has ended"
        folder = state / "hocket" / "stores" / f"127.0.0.1-{server.port}-{database}"
        with StoreClient(json.loads(line)["url"], (folder / "token").read_text().strip(), timeout=30) as client:
            yield process, client
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def difference(found: Any, expected: Any, place: str = "") -> str:
    """Return where two answers in JSON differ by more than rounding; "": nowhere."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if found.keys() != expected.keys():
            return f"{place}: keys {sorted(found)} and {sorted(expected)}"
        parts = (difference(found[key], expected[key], f"{place}.{key}") for key in expected)
        return next(filter(None, parts), "")
    if isinstance(expected, list) and isinstance(found, list):
        if len(found) != len(expected):
            return f"{place}: {len(found)} and {len(expected)} entries: {str(found)[:200]} {str(expected)[:200]}"
        pairs = enumerate(zip(found, expected, strict=True))
        return next(filter(None, (difference(*pair, f"{place}[{number}]") for number, pair in pairs)), "")
    if isinstance(expected, (int, float)) and isinstance(found, (int, float)):
        is_same = math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
    else:
        is_same = found == expected
    return "" if is_same else f"{place}: {found!r} and {expected!r}"


def send_rows(store: StoreClient, rows: Any, first: int, *, sender: str = "a") -> Any:
    """Send operations of run-1."""
    return store.ask(ROWS, method="POST", body=write_batch(rows), sender=sender, first_row=first)


def count_stored(store: StoreClient) -> int:
    sql = b"SELECT count(*) FROM operations"
    return int(store.ask("/v1/runs/run-1/query", method="POST", body=sql)["rows"][0][0])


def count_rolled_up(store: StoreClient) -> int:
    return sum(row[1] for row in store.ask("/v1/runs/run-1/questions/totals")["rows"])


def weight_of(rows: Any) -> int:
    return int(np.maximum(rows["weight"].to_numpy(), 1).sum())
