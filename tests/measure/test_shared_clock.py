"""Clocks of different hosts, compared: here threads with clocks that are known to differ."""

import time
from functools import partial
from queue import Queue

import pytest

from hocket.measure.shared_clock import SharedClock

from .meeting import Meeting, on_threads

pytestmark = pytest.mark.timeout(60)
HOSTS = ["a", "a", "b", "b", "c"]
AHEAD_S = {"a": 0.0, "b": 1000.0, "c": -0.125}


def clocks(hosts):
    """Return the clocks of all ranks after they have settled."""
    size = len(hosts)
    mail = {(src, dst): Queue() for src in range(size) for dst in range(size)}
    meeting = Meeting(size)

    def make(rank):
        return SharedClock(
            rank,
            hosts,
            lambda value, peer: mail[rank, peer].put(value),
            lambda peer: mail[peer, rank].get(timeout=30),
            partial(meeting.gather, rank),
            lambda: time.perf_counter() + AHEAD_S[hosts[rank]],
        )

    made = [make(rank) for rank in range(size)]
    on_threads(size, lambda rank: made[rank].settle())
    return made


def test_all_ranks_have_the_clock_of_rank_0_as_well_as_they_say():
    found = clocks(HOSTS)
    for each in found:
        before, theirs, after = found[0](), each(), found[0]()
        assert before - each.error_s <= theirs <= after + each.error_s
        assert 0 < each.error_s < 1.0
    assert len({each.error_s for each in found}) == 1


def test_ranks_of_one_host_share_its_clock():
    found = clocks(["a", "a", "a"])
    assert [each.error_s for each in found] == [0.0] * 3
    assert found[0]() <= found[2]() <= found[1]()
