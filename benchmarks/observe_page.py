"""How soon the page of `hocket observe serve` shows what happens, and how soon it opens a long run.

Part "live": events of simulated ranks come at a steady pace; once a second one rank has an event in a lane where
nothing else is, and the time counts from its end until its pixels are on the canvas. Frames of the browser are counted
meanwhile. Part "open": from the request for the page until lines and tables, or the whole timeline, are drawn.

Chromium draws by software here (no GPU); the page, the server and the senders share the processors.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from claim import Options, PartResults, option, run_claim
from observe_store import Events, owner_of
from playwright.sync_api import Page, sync_playwright

from hocket.measure import Row, computed, progress
from hocket.observe.store.arrow_batches import arrow_table, write_batch
from hocket.observe.store.client import StoreClient
from hocket.observe.store.owner import StoreOwner

CHROMIUM = "/usr/bin/chromium"
RUN = "benchmark"
NUM_RANKS, EVENTS_PER_RANK_S = 200, 20
TICK_S = 0.05
MOST_LATENCY_S, MOST_FRAME_S = 0.3, 0.1
MOST_LATE_S = 0.6
"""What comes later counts as not seen."""
OPENED = {1_000_000: 2.0, 20_000_000: 5.0}
LANE_HEIGHT, AXIS_HEIGHT, SHOWN_S = 16, 22, 60.0

FRAMES = """() => {
  window.frames_ = [];
  let before = performance.now();
  const count = (now) => { window.frames_.push(now - before); before = now; requestAnimationFrame(count); };
  requestAnimationFrame(count);
}"""
# Looks in every frame whether the lane of the marked rank has a new pixel near its right end. The end is shorter than
# the time between two marks, so that the one before has left it. A span is about a pixel wide, and its pixels may be
# half transparent.
MARKS = """([lane, height, axis]) => {
  window.marks_ = [];
  let was = false;
  const look = () => {
    const canvas = document.querySelector("main canvas");
    const ratio = devicePixelRatio;
    if (canvas) {
      const top = (axis + lane * height + 2) * ratio;
      const wide = Math.floor(canvas.width / 100);  // about 0.6 s
      const pixels = canvas.getContext("2d").getImageData(canvas.width - wide, top, wide, (height - 3) * ratio).data;
      let found = false;
      for (let at = 0; at < pixels.length; at += 4) {
        const [red, green, blue, alpha] = pixels.subarray(at, at + 4);
        if (alpha > 100 && blue > green + 30 && blue > red + 60) { found = true; break; }
      }
      if (found && !was) window.marks_.push(Date.now() / 1000);
      was = found;
    }
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""


@contextmanager
def page_of(url: str, token: str, place: str) -> Iterator[Page]:
    """A page in a browser without a window."""
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(f"{url}/#token={token}&{place}")
        yield page
        browser.close()


def rows_of(process: Any, began_s: Any, seconds: Any) -> bytes:
    """Operations as the store takes them."""
    count = len(process)
    texts = {name: np.full(count, text, object) for name, text in (
        ("communicator", "world"), ("op", "all_reduce"), ("state", "completed"), ("library", "shm"),
        ("algorithm", "ring"))}  # fmt: skip
    texts["host"] = np.array([f"node-{each // 25}" if each else "marked" for each in process], object)
    numbers = {name: np.zeros(count, np.int64) for name in ("comm", "number", "nbytes")}
    columns = {
        **texts, **numbers, "process": process, "rank": process, "peer": numbers["comm"] - 1, "began_s": began_s,
        "ended_s": began_s + seconds, "seconds": seconds, "blocked_s": seconds, "is_async": np.zeros(count, bool),
        "weight": numbers["comm"] + 1,
    }  # fmt: skip
    return write_batch(arrow_table("operations", columns))


class Feeder(threading.Thread):
    """Sends what ranks 1 and higher do as it happens, and what rank 0 does once a second."""

    def __init__(self, url: str, token: str, num_ranks: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self._place, self._num_ranks, self._seconds = (url, token), num_ranks, seconds
        self.marks: list[float] = []
        """When the events of rank 0 ended, in seconds since 1970."""

    def run(self) -> None:
        """Send."""
        draw = np.random.default_rng(1)
        per_tick = int(self._num_ranks * EVENTS_PER_RANK_S * TICK_S)
        with StoreClient(*self._place) as client:
            # The run is a minute old: what the page shows of it is a minute wide from here on.
            begin, sent, marked = time.time() - SHOWN_S, 0, SHOWN_S + 1.0
            client.ask(f"/v1/runs/{RUN}/progress", method="POST", now_s=SHOWN_S)
            path = f"/v1/runs/{RUN}/tables/operations/rows"
            # Its host is the first one, and so its lane.
            body = rows_of(np.zeros(1, np.int64), np.zeros(1), np.full(1, 1e-3))
            client.ask(path, method="POST", body=body, sender="marked", first_row=0)
            while (now := time.time() - begin) < SHOWN_S + self._seconds:
                process = draw.integers(1, self._num_ranks, per_tick)
                began, seconds = now - draw.random(per_tick) * TICK_S, draw.exponential(1e-2, per_tick)
                if now >= marked + 0.4:
                    process, began = np.append(process, 0), np.append(began, now - 0.03)
                    seconds = np.append(seconds, 0.03)
                    self.marks.append(begin + now)
                    marked += 1.0
                body = rows_of(process, began, seconds)
                client.ask(path, method="POST", body=body, sender="feeder", first_row=sent)
                client.ask(f"/v1/runs/{RUN}/progress", method="POST", now_s=time.time() - begin)
                sent += len(process)
                time.sleep(max(0.0, begin + now + TICK_S - time.time()))


def live(options: Options) -> PartResults:
    """Events of many ranks, until they are drawn."""
    with owner_of(options.folder / "live") as (url, token):
        with StoreClient(url, token) as client:
            client.ask(f"/v1/runs/{RUN}", method="PUT")
        feeder = Feeder(url, token, NUM_RANKS, options.seconds + 8.0)
        feeder.start()
        time.sleep(1.0)
        with page_of(url, token, f"/{RUN}/timeline") as page, progress("seconds", "s") as show:
            page.wait_for_selector("main canvas", timeout=20_000)
            page.wait_for_timeout(3000)
            page.evaluate(MARKS, [0, LANE_HEIGHT, AXIS_HEIGHT])
            page.evaluate(FRAMES)
            begun, num_before = time.monotonic(), len(feeder.marks)
            while time.monotonic() < begun + options.seconds:
                page.wait_for_timeout(500)
                show(int(time.monotonic() - begun), options.seconds, "")
            wanted = [each for each in feeder.marks[num_before:] if each < time.time() - MOST_LATE_S]
            frames, seen = page.evaluate("[window.frames_, window.marks_]")
        late = [
            min(each - mark for each in seen if each >= mark) for mark in wanted if any(each >= mark for each in seen)
        ]
        feeder.join(60)
    late = [each for each in late if each < MOST_LATE_S]
    p95_s, p999_s = float(np.quantile(late, 0.95)), float(np.quantile(frames, 0.999)) / 1e3
    print(
        f"{len(late)} of {len(wanted)} events: median {np.median(late) * 1e3:.0f} ms, most {max(late) * 1e3:.0f} ms;"
        f" {len(frames)} frames, median {np.median(frames):.1f} ms, most {max(frames):.0f} ms",
        file=sys.stderr,
    )
    is_seen = Row("events that were seen", "sent", len(late), len(wanted), "events", len(late) / len(wanted), None,
                  0.95, len(late) >= 0.95 * len(wanted))  # fmt: skip
    yield ([is_seen],)
    yield ([computed("event to pixel, p95", "limit", p95_s * 1e3, MOST_LATENCY_S * 1e3, "ms", 1.0)],)
    label = f"frames of {NUM_RANKS} ranks for {options.seconds} s, p99.9"
    yield ([computed(label, "limit", p999_s * 1e3, MOST_FRAME_S * 1e3, "ms", 1.0)],)


def fill(folder: Path, num_rows: int) -> None:
    """Make a store with a run of so many operations."""
    events = Events(1 << 20, 60.0)
    with StoreOwner(folder) as owner, progress("rows", "rows") as show:
        owner.add_run(RUN, {"command": ["train.py"], "began_unix_s": 0.0})
        run = owner.find_run(RUN)
        assert run is not None
        for number in range(-(-num_rows // (1 << 20))):
            rows = events.table(number).slice(0, num_rows - number * (1 << 20))
            owner.submit(run, "operations", "one", number << 20, rows, rows.nbytes).result(120)
            show(number << 20, num_rows, "")


def opening(options: Options) -> PartResults:
    """Runs with many events."""
    for num_rows, most_s in OPENED.items():
        folder = options.folder / f"opened-{num_rows}"
        fill(folder, num_rows)
        for view, drawn in (("overview", "main tr[data-layer]"), ("timeline", "main canvas")):
            took = []
            with owner_of(folder) as (url, token):
                for _ in range(5):
                    with sync_playwright() as started:
                        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                        page = browser.new_page(viewport={"width": 1200, "height": 900})
                        begun = time.monotonic()
                        page.goto(f"{url}/#token={token}&/{RUN}/{view}")
                        while page.query_selector(drawn) is None:  # Playwright would look twice a second only
                            if time.monotonic() > begun + 60:
                                raise TimeoutError(f"{view} of {num_rows} events was not drawn")
                            time.sleep(0.01)
                        page.evaluate(
                            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
                        )
                        took.append(time.monotonic() - begun)
                        browser.close()
            first = f"the first one {took[0]:.2f} s"
            print(f"{num_rows:,} events, {view}: {first}, then {np.median(took[1:]):.2f} s", file=sys.stderr)
            yield ([computed(f"{num_rows:,} events, {view}", "limit", max(took) * 1e3, most_s * 1e3, "ms", 1.0)],)


if __name__ == "__main__":
    run_claim(
        "the page shows an event within 300 ms at p95, and opens 1,000,000 events in 2 s and 20 million in 5 s",
        {"live": live, "open": opening},
        option("--seconds", type=int, default=60, metavar="S", help="how long events come (default 60)"),
        unit="ms",
    )
