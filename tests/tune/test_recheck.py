"""When a choice of a table that is timed again holds."""

from __future__ import annotations

import pytest

from hocket.tune.recheck import MOST_RATIO, _judge

_POINT = ("all_reduce", "full", 4096)
_SLOWER = 1.1 * MOST_RATIO


@pytest.mark.parametrize(
    ("chosen", "holds"),
    [
        ([1.0] * 9, True),
        ([_SLOWER] * 9, False),
        ([1.0] * 4 + [_SLOWER] * 5, True),  # perhaps: the lower end of the interval is not above
        ([1.0] + [_SLOWER] * 8, False),
        ([0.5] * 9, True),
    ],
)
def test_a_choice_falls_only_beyond_doubt(chosen: list[float], holds: bool) -> None:
    found = _judge(_POINT, "shm", {"shm": chosen, "gloo": [5.0] * 9, "mpi": [1.0] * 9})
    assert (found.chosen, found.best, found.num_others) == ("shm", "mpi", 2)
    assert found.low <= found.ratio <= found.high
    assert found.holds is holds
