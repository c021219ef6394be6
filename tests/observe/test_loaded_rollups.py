"""Roll-ups are loaded while rows are sealed: each row is in the answers once, and nobody waits for the load but who
asks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from hocket.errors import RecorderError
from hocket.observe.store import loaded_rollups
from hocket.observe.store.owner import StoreOwner
from hocket.observe.store.stored_run import StoredRun

from ..naming import raises
from .stored_rows import rows_of
from .test_store import found_run, submit

pytestmark = pytest.mark.timeout(120)
PARTS = [rows_of("operations", 100, seed) for seed in range(5)]
COUNTS = [0, *itertools.accumulate(int(np.maximum(each["weight"].to_numpy(), 1).sum()) for each in PARTS)]
"""Events of the first parts."""


class Gates:
    """Loads stop at two places: when their files are listed, and when these are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_listed, self.may_read, self.is_read, self.may_end = (Event() for _ in range(4))
        real = loaded_rollups.RollupDatabase

        def load(*args: Any) -> Any:
            self.is_listed.set()
            assert self.may_read.wait(60)
            try:
                return real(*args)
            finally:
                self.is_read.set()
                assert self.may_end.wait(60)

        monkeypatch.setattr(loaded_rollups, "RollupDatabase", load)

    def open(self) -> None:
        self.may_read.set()
        self.may_end.set()


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gates]:
    gates = Gates(monkeypatch)
    yield gates
    gates.open()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@contextmanager
def stored(tmp_path: Path) -> Iterator[tuple[StoreOwner, StoredRun]]:
    """A new store with one run."""
    with StoreOwner(tmp_path / "store") as owner:
        owner.add_run("run-1", {})
        yield owner, found_run(owner, "run-1")


def count_of(run: StoredRun) -> int:
    return int(sum(row[1] for row in run.ask("totals").rows))


def test_rows_that_are_sealed_during_a_load_are_counted_once(
    tmp_path: Path, gates: Gates, pool: ThreadPoolExecutor
) -> None:
    with stored(tmp_path) as (owner, run):
        submit(owner, run, 0, PARTS[0])
        asking = [pool.submit(count_of, run)]
        assert gates.is_listed.wait(30)
        submit(owner, run, 100, PARTS[1])
        asking.append(pool.submit(count_of, run))
        gates.may_read.set()
        assert gates.is_read.wait(30)
        submit(owner, run, 200, PARTS[2])
        assert not any(each.done() for each in asking)
        gates.may_end.set()
        assert [each.result(30) for each in asking] == [COUNTS[3], COUNTS[3]]
        submit(owner, run, 300, PARTS[3])
        assert count_of(run) == COUNTS[4]
    with StoreOwner(tmp_path / "store") as owner:
        assert count_of(found_run(owner, "run-1")) == COUNTS[4]


def test_roll_ups_that_are_removed_during_a_load_do_not_come_back(
    tmp_path: Path, gates: Gates, pool: ThreadPoolExecutor
) -> None:
    with stored(tmp_path) as (owner, run):
        submit(owner, run, 0, PARTS[0])
        (segment,) = run._rollup_segments["operations"]
        os.utime(segment.path, (0, 1e9))
    with StoreOwner(tmp_path / "store") as owner:
        run = found_run(owner, "run-1")
        submit(owner, run, 100, PARTS[1])
        asking = pool.submit(count_of, run)
        assert gates.is_listed.wait(30)
        run.forget(0.0, 1.5e9)
        submit(owner, run, 200, PARTS[2])
        gates.open()
        assert asking.result(30) == COUNTS[2]  # what was there when it was asked
        assert count_of(run) == COUNTS[3] - COUNTS[1]


def test_a_load_that_fails_is_told_to_all_and_tried_again(
    tmp_path: Path, gates: Gates, pool: ThreadPoolExecutor
) -> None:
    with stored(tmp_path) as (owner, run):
        submit(owner, run, 0, PARTS[0])
        (segment,) = run._rollup_segments["operations"]
        content = segment.path.read_bytes()
        segment.path.write_bytes(content[:-9])
        asking = [pool.submit(count_of, run)]
        assert gates.is_listed.wait(30)
        asking.append(pool.submit(count_of, run))
        gates.open()
        for each in asking:
            with raises(RecorderError, names=str(segment.path)):
                each.result(30)
        segment.path.write_bytes(content)
        assert count_of(run) == COUNTS[1]


def test_answers_while_rows_are_sealed_and_roll_ups_leave_the_memory(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer has all rows that were sealed before it was asked, and none that were sent after it was given."""
    monkeypatch.setattr("hocket.observe.store.owner._TIDY_S", 600.0)  # one thread tidies: here it is this one
    weights = np.maximum(PARTS[0]["weight"].to_numpy(), 1)
    sums = [0, *np.cumsum(weights).tolist()]
    num_sent = num_sealed = 0
    with stored(tmp_path) as (owner, run):

        def send() -> None:
            nonlocal num_sent, num_sealed
            for place in range(len(weights)):
                num_sent = place + 1
                submit(owner, run, place, PARTS[0].slice(place, 1))
                num_sealed = place + 1

        sending = pool.submit(send)
        num_answers = 0
        while not sending.done():
            before = num_sealed
            found = count_of(run)
            assert found in sums[before : num_sent + 1]
            num_answers += 1
            if num_answers % 2:
                with run._rollups.changing:
                    run._rollups.drop()
            run.tidy()
        sending.result(30)
        assert count_of(run) == sums[-1]
        assert num_answers > 3
