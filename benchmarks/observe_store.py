"""How fast a store takes events, and how fast it answers meanwhile.

Part "seal": 200,000 operations of 18 columns sent to the owner's process, sealed as Parquet and seen in the answer to a
question; against SQLite, which inserts the same rows. Part "load": events come at a given rate while readers ask the
four questions of an overview once a second each.

Events are sent in batches of 65,536 rows by this process; readers are connections of one other process. Answers are
shared by those who ask within a second.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
from claim import Options, PartResults, option, run_claim

from hocket.measure import Comparison, Contender, Row, Team, computed, measure, progress
from hocket.observe.store.arrow_batches import schema_of, write_batch
from hocket.observe.store.client import StoreClient
from hocket.observe.store.columns import INTEGER, NUMBER, TABLE_COLUMNS, TEXT
from hocket.observe.store.overview import OVERVIEW

TABLE, RUN = "operations", "benchmark"
COLUMNS = TABLE_COLUMNS[TABLE]
SEALED_ROWS, PUBLISHED_S = 200_000, 0.055
BATCH_ROWS, NUM_RANKS = 65_536, 64
NUM_SENDERS = 2
TEXTS = {
    "host": [f"node-{number}" for number in range(8)], "communicator": ["world", "data", "tensor"],
    "op": ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send", "recv"], "state": ["completed"],
    "library": ["shm", "gloo"], "algorithm": ["ring", "tree", ""],
}  # fmt: skip
SLOWEST_S, SHARE = 1.0, 0.99


class Events:
    """Rows like those of a training with many ranks; from one batch to the next only their times change."""

    def __init__(self, num_rows: int, seconds: float) -> None:
        draw = np.random.default_rng(1)
        self._begin = np.sort(draw.random(num_rows)) * seconds
        self._seconds = draw.exponential(1e-4, num_rows)
        self._length_s = seconds
        self._columns = {name: self._column(name, draw, num_rows) for name in COLUMNS}
        self._columns["rank"] = self._columns["process"] = pa.array(draw.integers(0, NUM_RANKS, num_rows))
        self._columns["weight"] = pa.array(np.ones(num_rows, np.int64))

    def _column(self, name: str, draw: np.random.Generator, num_rows: int) -> pa.Array:
        kind = COLUMNS[name]
        if kind == TEXT:
            codes = draw.integers(0, len(TEXTS[name]), num_rows).astype(np.int32)
            return pa.DictionaryArray.from_arrays(pa.array(codes), TEXTS[name])
        if kind == INTEGER:
            return pa.array(1 << draw.integers(3, 22, num_rows) if name == "nbytes" else draw.integers(0, 50, num_rows))
        return pa.array(self._seconds if kind == NUMBER else draw.random(num_rows) < 0.5)

    def table(self, number: int) -> pa.Table:
        """The rows of one batch."""
        began = self._begin + number * self._length_s
        times = {"began_s": pa.array(began), "ended_s": pa.array(began + self._seconds)}
        return pa.table([{**self._columns, **times}[name] for name in COLUMNS], schema=schema_of(TABLE))

    def batch(self, number: int) -> bytes:
        """The same as they are sent."""
        return write_batch(self.table(number))


@contextmanager
def owner_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Start the owner of a new store; yield its address and token."""
    command = [sys.executable, "-m", "hocket.cli", "observe", "serve", "--store", str(folder), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        yield url, (folder / "token").read_text().strip()
    finally:
        process.terminate()
        process.wait(60)


def send(client: StoreClient, sender: str, first_row: int, body: bytes) -> None:
    path = f"/v1/runs/{RUN}/tables/{TABLE}/rows"
    client.ask(path, method="POST", body=body, sender=sender, first_row=first_row)


def seal(options: Options) -> PartResults:
    """Times of 200,000 rows from the first byte to an answer that has them."""
    events = Events(SEALED_ROWS, 1.0)
    bodies = [events.batch(number) for number in range(8)]
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    rows = list(zip(*(events.table(0)[name].to_pylist() for name in COLUMNS), strict=True))
    with owner_of(options.folder / "sealed") as (url, token), StoreClient(url, token) as client:
        client.ask(f"/v1/runs/{RUN}", method="PUT")
        database = sqlite3.connect(options.folder / "rows.sqlite")
        database.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; CREATE TABLE rows ({names})")
        number = 0

        def into_store() -> None:
            nonlocal number
            send(client, "one", number * SEALED_ROWS, bodies[number % len(bodies)])
            number += 1
            # A window that nobody has asked for: its answer is not a shared one.
            answer = client.ask(f"/v1/runs/{RUN}/questions/totals", spans=1000 + number)
            assert answer["rows"][0][1] >= number * SEALED_ROWS, answer

        def into_sqlite() -> None:
            database.executemany(f"INSERT INTO rows VALUES ({', '.join('?' * len(COLUMNS))})", rows)
            database.commit()
            (count,) = database.execute("SELECT max(rowid) FROM rows").fetchone()
            assert count % SEALED_ROWS == 0

        case = f"{SEALED_ROWS:,} rows"
        contenders = [Contender.of_call(case, "store", into_store), Contender.of_call(case, "SQLite", into_sqlite)]
        with progress("rounds") as on_round:
            measurement = measure(Team(contenders), options.settings, on_round=on_round)
        counted = client.ask(f"/v1/runs/{RUN}/query", method="POST", body=f"SELECT count(*) FROM {TABLE}".encode())
        assert counted["rows"] == [[number * SEALED_ROWS]], counted
    yield [Comparison(case, "store", ("SQLite",), 1.0, needs_cores=False, unit="ms")], measurement
    ours_ms = float(np.median(measurement.times(case, "store"))) * 1e3
    yield ([computed(f"{case} sealed and visible", "INAM, published", ours_ms, PUBLISHED_S * 1e3, "ms", 1.0)],)


async def read_answers(
    url: str, token: str, begin_s: float, seconds: float, num_readers: int, views: Sequence[str]
) -> list[float]:
    """Ask the questions of an overview, and views, once a second over each connection; return the times of answers."""
    place = urlsplit(url)
    took: list[float] = []

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        due_s = time.monotonic()
        head = f"GET {path} HTTP/1.1\r\nhost: {place.netloc}\r\nauthorization: Bearer {token}\r\n\r\n"
        writer.write(head.encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        length = next(int(line.split(b":")[1]) for line in answer.lower().split(b"\r\n") if b"content-length" in line)
        await reader.readexactly(length)
        took.append(time.monotonic() - due_s)

    async def serve(number: int) -> None:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        for second in range(int(seconds)):
            await asyncio.sleep(max(0.0, begin_s + second + number / num_readers - time.monotonic()))
            window = f"begin_s={max(0, second - 60)}&end_s={second + 1}"
            for question in OVERVIEW:
                await ask(reader, writer, f"/v1/runs/{RUN}/questions/{question}?{window}")
            for view in views:
                await ask(reader, writer, f"/v1/runs/{RUN}/views/{view}?{window}")
        writer.close()

    await asyncio.gather(*map(serve, range(num_readers)))
    return took


def read_in_process(url: str, token: str, begin_s: str, seconds: str, num_readers: str, *views: str) -> None:
    took = asyncio.run(read_answers(url, token, float(begin_s), float(seconds), int(num_readers), views))
    print(json.dumps(took))


def feed(url: str, token: str, batches: Queue[tuple[int, float]], events: Events, late: list[float]) -> None:
    """Send batches as they become due; note how late each one was answered for."""
    sender = threading.current_thread().name
    with StoreClient(url, token) as client:
        first_row = 0
        while True:
            try:
                number, due_s = batches.get_nowait()
            except Empty:
                return
            time.sleep(max(0.0, due_s - time.monotonic()))
            send(client, sender, first_row, events.batch(number))
            first_row += BATCH_ROWS
            late.append(time.monotonic() - due_s)


def memory_of(client: StoreClient) -> str:
    """The memory of the owner's process."""
    status = Path(f"/proc/{client.ask('/v1/health')['process']}/status").read_text()
    return f"{int(status.partition('VmRSS:')[2].split()[0]) // 1024} MiB"


def load(options: Options) -> PartResults:
    """Events at a rate, and readers."""
    num_batches = int(options.rate * options.seconds / BATCH_ROWS)
    length_s = BATCH_ROWS / options.rate
    events = Events(BATCH_ROWS, length_s)
    late: list[float] = []
    with owner_of(options.folder / "loaded") as (url, token), StoreClient(url, token) as client:
        client.ask(f"/v1/runs/{RUN}", method="PUT")
        begin_s = time.monotonic() + 2.0
        batches: Queue[tuple[int, float]] = Queue()
        for number in range(num_batches):
            batches.put((number, begin_s + (number + 1) * length_s))
        words = [url, token, f"{begin_s}", f"{options.seconds}", f"{options.readers}", *options.views]
        readers = subprocess.Popen(
            [sys.executable, __file__, "--readers-of", *words], stdout=subprocess.PIPE, text=True
        )
        feeders = [
            threading.Thread(target=feed, args=(url, token, batches, events, late), name=f"sender-{number}")
            for number in range(NUM_SENDERS)
        ]
        for each in feeders:
            each.start()
        half = None
        with progress("events", "events") as show:
            while any(each.is_alive() for each in feeders):
                show(len(late) * BATCH_ROWS, num_batches * BATCH_ROWS, "")
                time.sleep(0.2)
                if half is None and len(late) * 2 > num_batches:
                    half = memory_of(client)
        took_s = time.monotonic() - begin_s
        memory = f"memory of the owner {half} in the middle, {memory_of(client)} at the end"
        took = json.loads(readers.communicate(timeout=60)[0])
        counted = client.ask(f"/v1/runs/{RUN}/query", method="POST", body=f"SELECT count(*) FROM {TABLE}".encode())
        assert counted["rows"] == [[num_batches * BATCH_ROWS]], counted
        (totals,) = client.ask(f"/v1/runs/{RUN}/questions/totals")["rows"]
        nbytes = sum(each.stat().st_size for each in (options.folder / "loaded").rglob("*.parquet"))
    rate = num_batches * BATCH_ROWS / took_s
    slowest_s = float(np.quantile(took, SHARE))
    case = f"{options.rate:,} events/s for {options.seconds} s"
    answers = f"{len(took)} answers, median {np.median(took) * 1e3:.1f} ms, most {max(took) * 1e3:.0f} ms"
    sealed = f"rows sealed {np.median(late) * 1e3:.0f} ms after they were due, most {max(late) * 1e3:.0f} ms"
    files = f"{nbytes / num_batches / BATCH_ROWS:.1f} bytes of files a row"
    print(f"{case}: {answers}; {sealed}; {files}; {memory}", file=sys.stderr)
    assert totals[1] == num_batches * BATCH_ROWS, totals
    yield (
        [
            Row(
                case,
                "taken",
                rate,
                options.rate,
                "events/s",
                rate / options.rate,
                None,
                0.99,
                rate >= 0.99 * options.rate,
            )
        ],
    )
    label = f"{options.readers} readers meanwhile, p99 of an answer"
    yield ([computed(label, "limit", slowest_s * 1e3, SLOWEST_S * 1e3, "ms", 1.0)],)


if __name__ == "__main__" and sys.argv[1:2] == ["--readers-of"]:
    read_in_process(*sys.argv[2:])
elif __name__ == "__main__":
    run_claim(
        "200,000 rows are sealed and visible in at most 55 ms, and 500,000 events/s leave answers under 1 s at p99",
        {"seal": seal, "load": partial(load)},
        option("--rate", type=int, default=500_000, metavar="N", help="events a second (default 500000)"),
        option("--seconds", type=int, default=60, metavar="S", help="how long they come (default 60)"),
        option("--readers", type=int, default=64, metavar="N", help="readers (default 64)"),
        option("--views", nargs="*", default=(), metavar="VIEW", help="of the page, which readers ask for, too"),
        unit="ms",
    )
