"""Views of runs that are long, or have many ranks: they are as large as a page can show, and the numbers are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
from hocket.observe.serve.view import MOST_THINNED_ROWS, ViewSource, ViewWindow
from hocket.observe.serve.views import links, matrix, processes
from hocket.observe.store.arrow_batches import arrow_table
from hocket.observe.store.columns import NUMBER, TABLE_COLUMNS, TEXT
from hocket.observe.store.owner import StoreOwner

pytestmark = pytest.mark.timeout(180)
_BATCH_ROWS = 65_536


def _stored(folder: Path, tables: dict[str, dict[str, Any]]) -> StoreOwner:
    """A store with a run of tables, of which some columns are given."""
    owner = StoreOwner(folder)
    owner.add_run("run", {})
    run = owner.find_run("run")
    assert run is not None
    for name, given in tables.items():
        count = len(next(iter(given.values())))
        empty = {TEXT: np.full(count, "", object), NUMBER: np.zeros(count)}
        columns = {
            column: np.asarray(given[column]) if column in given else empty.get(kind, np.zeros(count, np.int64))
            for column, kind in TABLE_COLUMNS[name].items()
        }
        rows = arrow_table(name, columns)
        for first in range(0, count, _BATCH_ROWS):
            part = rows.slice(first, _BATCH_ROWS)
            owner.submit(run, name, "test", first, part, part.nbytes).result(60)
    return owner


def _view(owner: StoreOwner, view: Any) -> Any:
    run = owner.find_run("run")
    assert run is not None
    return view.VIEW.make(ViewSource(run, owner), ViewWindow())


def _texts(values: list[str]) -> np.ndarray:
    return np.array(values, object)


def test_a_run_of_days_has_few_points(tmp_path: Path) -> None:
    seconds = 60_000
    at_s = np.arange(seconds, dtype=float)
    samples = {"process": np.repeat([0, 1], seconds), "at_s": np.tile(at_s, 2), "cpu_s": np.tile(at_s / 4, 2),
               "resident_nbytes": np.full(2 * seconds, 7.0)}  # fmt: skip
    counters = {
        "host": _texts(["a"] * 2 * seconds), "source": _texts(["network"] * 2 * seconds),
        "device": _texts(["eth0"] * 2 * seconds), "at_s": np.tile(at_s, 2),
        "number": _texts(["sent_nbytes"] * seconds + ["received_nbytes"] * seconds),
        "value": np.concatenate([at_s * 100, at_s * 50]),
    }  # fmt: skip
    both = {"process": np.arange(2), "rank": np.arange(2)}
    with _stored(tmp_path / "store", {"processes": both, "samples": samples, "host_samples": counters}) as owner:
        for process in _view(owner, processes).processes:
            known = [each for each in process.series.cpu if each is not None]
            assert 100 < len(known) < 1000 and known == pytest.approx([0.25] * len(known))
            assert process.series.at_s[0] == 0
        (series,) = _view(owner, links).series
        assert 100 < len(series.at_s) < 1000 and series.at_s[-1] > 0.99 * seconds
        assert series.sent_nbytes_s == pytest.approx([100.0] * len(series.at_s))
        assert series.received_nbytes_s == pytest.approx([50.0] * len(series.at_s))
    assert 2 * seconds < MOST_THINNED_ROWS


def test_waits_of_many_ranks_are_shown_by_the_hosts_of_their_job(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    num_ranks, num_steps = 512, 256
    late = draw.integers(0, num_ranks, num_steps)
    rank = np.tile(np.arange(num_ranks), num_steps)
    waited = {
        "process": rank, "rank": rank, "comm": np.zeros(len(rank), np.int64), "late_rank": np.repeat(late, num_ranks),
        "wait_s": draw.random(len(rank)), "number": np.repeat(np.arange(num_steps), num_ranks),
    }  # fmt: skip
    small = {"process": [600, 601], "rank": [0, 1], "comm": [1, 1], "late_rank": [1, 0], "wait_s": [2.0, 3.0]}
    waits = {name: np.concatenate([values, small.get(name, [0, 0])]) for name, values in waited.items()}
    ranks = np.concatenate([np.arange(num_ranks), [0, 1]])
    totals = {
        "process": np.concatenate([np.arange(num_ranks), [600, 601]]), "rank": ranks,
        "comm": np.array([0] * num_ranks + [1, 1]),
        "host": _texts([f"large-{each // 128}" for each in range(num_ranks)] + ["small"] * 2),
    }  # fmt: skip
    tables = {"communicators": {"comm": [0, 1], "job": [1, 2]}, "totals": totals, "waits": waits}
    with _stored(tmp_path / "store", tables) as owner:
        first, second = _view(owner, matrix).waits
    assert first.is_by_host and first.ends == [f"large-{each}" for each in range(4)]
    is_wait = waited["rank"] != waited["late_rank"]
    expected = np.zeros((4, 4))
    np.add.at(expected, (waited["rank"][is_wait] // 128, waited["late_rank"][is_wait] // 128),
              waited["wait_s"][is_wait])  # fmt: skip
    found = np.zeros((4, 4))
    found[first.cells.source, first.cells.target] = first.cells.wait_s
    assert found == pytest.approx(expected) and sum(first.cells.num_waits) == is_wait.sum()
    assert (second.job, second.is_by_host, second.ends) == (2, False, ["rank 0", "rank 1"])
    assert (second.cells.source, second.cells.wait_s) == ([0, 1], [2.0, 3.0])
