"""Messages that are packed at once: never one that Dask would pack in a thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed")

from distributed.comm import utils
from distributed.protocol import to_serialize
from distributed.sizeof import safe_sizeof

from hocket.dask.message_size import is_surely_small

MOST = 10_000
ARRAY = np.zeros(2000, "u1")
SMALL: list[Any] = [
    {},
    [],
    {"op": "ping", "reply": True, "x": 3, "y": None, "z": 0.5},
    {"x": to_serialize(ARRAY), "data": b"x" * 100},
    [{"op": "a"}, {"op": "b", "x": to_serialize(ARRAY)}],
]
NOT_KNOWN: list[Any] = [
    {"x": to_serialize(np.zeros(MOST, "u1"))},
    {"x": to_serialize(np.zeros(3, object))},
    {"x": to_serialize([1, 2])},
    {"x": b"x" * MOST},
    {"x": "x" * MOST},
    {"x": {"y": 1}},
    {"x": [1]},
    [{"x": to_serialize(ARRAY)}] * 5,
    [[{}]],
    [{}] * 1000,
    dict.fromkeys(map(str, range(1000))),
    "x",
    3,
]


@pytest.fixture(autouse=True)
def _threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "OFFLOAD_THRESHOLD", MOST)


@pytest.mark.parametrize("message", SMALL)
def test_small(message: Any) -> None:
    assert is_surely_small(message)
    assert safe_sizeof(message, default_size=-1) < MOST


@pytest.mark.parametrize("message", NOT_KNOWN)
def test_what_is_left_to_dask(message: Any) -> None:
    assert not is_surely_small(message)


def test_without_a_thread_there_is_nothing_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "OFFLOAD_THRESHOLD", False)
    assert not is_surely_small({"x": 1})
