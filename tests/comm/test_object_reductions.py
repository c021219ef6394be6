"""Reductions of Python objects, against functools.reduce."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import hocket as hk
from hocket._native import REDUCE_NAMES
from hocket.comm.object_folds import NAMES

from ..naming import raises

pytestmark = pytest.mark.timeout(60)

VALUES = {
    "sum": [1, 2.5, 3], "prod": [2, 3, 7], "min": [5, 1, 9], "max": [5, 1, 9], "avg": [1, 2, 6],
    "band": [7, 3, 6], "bor": [1, 2, 4], "bxor": [1, 3, 7], "land": [1, 0, 2], "lor": [0, 0, 2], "lxor": [1, 1, 2],
}  # fmt: skip
EXPECTED = {
    "sum": 6.5, "prod": 42, "min": 1, "max": 9, "avg": 3.0, "band": 2, "bor": 7, "bxor": 5, "land": False, "lor": True,
    "lxor": True,
}  # fmt: skip


def _reduce(comm: hk.Communicator) -> bool:
    for name in NAMES:
        mine = VALUES[name][comm.rank]
        assert comm.all_reduce_object(mine, name) == EXPECTED[name], name
        for root in range(comm.size):
            found = comm.reduce_object(mine, root, name)
            assert found == (EXPECTED[name] if comm.rank == root else None)
    assert comm.all_reduce_object("abc"[comm.rank]) == "abc"  # in rank order
    assert comm.all_reduce_object([comm.rank]) == [0, 1, 2]

    def merged(a: dict[int, Any], b: dict[int, Any]) -> dict[int, Any]:
        return {**a, **b}

    assert comm.all_reduce_object({comm.rank: None}, merged) == dict.fromkeys(range(3))
    with raises(hk.InvalidArgument, names=("'summ'", "'sum'")):
        comm.all_reduce_object(1, "summ")
    with raises(hk.InvalidArgument, names=("'nothing'",)):
        comm.reduce_object(1, 0, "nothing")
    comm.barrier()  # nothing was sent for these
    return True


def test_objects_are_folded_in_rank_order() -> None:
    assert all(hk.spawn(_reduce, 3, timeout=50))
    assert functools.reduce(lambda a, b: a + b, VALUES["sum"]) == EXPECTED["sum"]


def test_every_reduction_of_arrays_has_one_of_objects() -> None:
    assert set(NAMES) == set(REDUCE_NAMES) == set(VALUES)
