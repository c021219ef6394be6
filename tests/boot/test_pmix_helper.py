"""Which messages a launcher accepts from the server that it starts for Open MPI."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hocket.boot.pmix_helper import PmixHelper

pytestmark = pytest.mark.timeout(30)
VARIABLES = {"PMIX_NAMESPACE": "a", "PMIX_SERVER_TMPDIR": "/tmp/a"}


def helper(sent: list[tuple[int, Any]]) -> PmixHelper:
    """A helper without a process, which gets its lines from a test."""
    made = object.__new__(PmixHelper)
    made._answer, made._asking, made._size = None, [0, 1], 2
    made.inside, made.aborted = set(), None
    made._send = lambda rank, line: sent.append((rank, json.loads(line)))
    return made


@pytest.mark.parametrize(
    "line",
    [
        b"garbage", b"[]", b"{}", b"3", b"[" * 100_000, b'{"error": 3}', b'{"variables": 3}', b'{"variables": []}',
        json.dumps({"variables": [VARIABLES]}).encode(), json.dumps({"variables": [VARIABLES, {"a": "b"}]}).encode(),
        json.dumps({"variables": [VARIABLES, VARIABLES | {"a": 3}]}).encode(),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_an_error_for_the_ranks(line: bytes) -> None:
    sent: list[tuple[int, Any]] = []
    helper(sent)._take_line(line)
    assert [rank for rank, _ in sent] == [0, 1] and all(answer.keys() == {"error"} for _, answer in sent)


def test_news_of_ranks_are_bounded_and_typed() -> None:
    sent: list[tuple[int, Any]] = []
    one = helper(sent)
    one._take_line(json.dumps({"variables": [VARIABLES, VARIABLES]}).encode())
    assert sent == [(0, {"variables": VARIABLES}), (1, {"variables": VARIABLES})]
    for news in ({"connected": 2}, {"connected": True}, {"aborted": 1}, {"aborted": -1, "code": 3}, [], "a", None):
        one._take_line(json.dumps(news).encode())
    one._take_line(b"[" * 100_000)
    assert (one.inside, one.aborted) == (set(), None)
    for news in ({"connected": 0}, {"connected": 1}, {"finalized": 0}, {"aborted": 1, "code": 7}):
        one._take_line(json.dumps(news).encode())
    assert (one.inside, one.aborted) == ({1}, (1, 7))
