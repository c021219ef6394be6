"""What pages that follow a run are sent: sums of hostile or very many senders never wrap around."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hocket.observe.serve.live import LiveRun
from hocket.observe.store.arrow_batches import arrow_table
from hocket.observe.store.rollups import MOST_SUM, rollup_of

from .stored_rows import columns_of

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.timeout(60)


def _rows(name: str, seconds: float) -> Any:
    """Four events of a process in one span, one of which has as many bytes and stands for as many as can be."""
    columns = columns_of("io", 4) | {"process": np.zeros(4, int), "rank": np.zeros(4, int)}
    columns |= {
        "kind": np.array([name] * 4, object),
        "began_s": np.full(4, 0.01),
        "ended_s": np.full(4, 0.01 + seconds),
    }
    columns["weight"] = columns["nbytes"] = np.array([MOST_SUM, 1, 1, 1])
    return arrow_table("io", columns)


@pytest.mark.parametrize("seconds", [0.001, 2.0])
def test_sums_stay_at_the_largest_number(seconds: float) -> None:
    """Within a batch, of batches, and of events that are divided among spans; whole ticks and those of changes."""
    run = LiveRun()
    for name in ("read", "write", "read"):
        rows = _rows(name, seconds)
        run.add(rollup_of("io", rows), rows)
    other = _rows("read", seconds).slice(1)
    run.add(rollup_of("io", other), other)
    for tick in (run.tick(), *run.since(0)):
        (lane,) = json.loads(tick.content)["lanes"]
        assert lane["count"][0] == lane["nbytes"][0] == MOST_SUM
        assert min(lane["count"]) >= 0 and min(lane["nbytes"]) >= 0


def test_names_of_one_batch_are_added_as_they_are() -> None:
    """Small sums are exact."""
    columns = columns_of("io", 4) | {"process": np.zeros(4, int), "rank": np.zeros(4, int)}
    columns |= {"kind": np.array([*"abab"], object), "began_s": np.full(4, 0.01), "ended_s": np.full(4, 0.02)}
    rows = arrow_table("io", columns | {"weight": np.array([1, 2, 3, 4]), "nbytes": np.array([5, 6, 7, 8])})
    run = LiveRun()
    for _ in range(2):
        run.add(rollup_of("io", rows), rows)
    (lane,) = json.loads(run.tick().content)["lanes"]
    assert (lane["count"], lane["nbytes"]) == ([20], [2 * (1 * 5 + 2 * 6 + 3 * 7 + 4 * 8)])
