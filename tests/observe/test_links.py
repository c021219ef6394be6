"""Loads of network devices from samples with known bytes and times."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hocket.observe import (
    ConnectionEnd,
    HostConnections,
    ObservedRun,
    RunClock,
    SavedSeries,
    findings,
    link_loads,
)
from hocket.observe.analysis import findings as findings_module
from hocket.observe.tcp_sockets import TCP_NUMBERS

from .fabricated_run import MS, FakeRank, Op, fabricate

pytestmark = pytest.mark.timeout(60)
_S = 1_000_000_000
_CLOCK = RunClock([(0, 0), (10**13, 10**13)], [], 0)


def _device(host: str, sent: list[float], name: str = "eth0") -> SavedSeries:
    numbers = ("received_nbytes", "sent_nbytes", "sent_packets", "send_drops", "speed_nbytes_s")
    rows = np.zeros(len(sent), [("time_ns", "<i8"), *((number, "<f8") for number in numbers)])
    rows["time_ns"] = np.arange(len(sent)) * _S
    rows["sent_nbytes"] = sent
    return SavedSeries(host, "network", name, rows, _CLOCK)


def _connections(host: str, ends: list[ConnectionEnd], rows: list[tuple[int, int, float, float]]) -> HostConnections:
    """Rows of connection, second, bytes sent, and seconds of waits for the network."""
    found = np.zeros(len(rows), [("time_ns", "<i8"), ("connection", "<f8"), *((each, "<f8") for each in TCP_NUMBERS)])
    for row, (connection, second, sent, busy) in zip(found, rows, strict=True):
        row["time_ns"], row["connection"], row["sent_nbytes"], row["busy_s"] = second * _S + MS, connection, sent, busy
        row["rtt_s"], row["least_rtt_s"] = 0.01, 0.001
    return HostConnections(host, tuple(ends), found, 0, _CLOCK)


def _two_hosts(rows: list[tuple[int, int, float, float]], sent: list[float], **ops: Any) -> ObservedRun:
    """Rank 0 on a, rank 1 on b; a sends."""
    begin, end = ops.get("ops", (0, len(sent) * _S))
    run = fabricate(
        FakeRank(rank, [Op("all_reduce", 1, begin, end)], host=host) for rank, host in enumerate(("a", "b"))
    )
    names = [process.name for process in run.processes]
    mine, theirs = (
        ConnectionEnd(name, local, remote, "eth0")
        for name, local, remote in ((names[0], "10.0.0.1:1", "10.0.0.2:2"), (names[1], "10.0.0.2:2", "10.0.0.1:1"))
    )
    other = ConnectionEnd(names[0], "10.0.0.1:7", "10.0.0.9:80", "eth0")
    hosts = _connections("a", [mine, other], rows), _connections("b", [theirs], [])
    return replace(run, connections=hosts, host_series=(_device("a", sent),))


def test_a_burst_after_a_pause_is_not_spread_over_it() -> None:
    # Nothing is sent from second 1 to 9; in the next one the network is the limit.
    rows = [(0, 1, 1e6, 0.01), (0, 10, 101e6, 0.91)]
    sent = [0.0, *[1.1e6] * 9, 105e6]
    (load,) = link_loads(_two_hosts(rows, sent))
    assert load.limited_s == pytest.approx(0.91, abs=0.02)
    assert load.limited_nbytes_s == pytest.approx(105e6 - 1.1e6, rel=0.01) and load.rtt_ratio == pytest.approx(10)


def test_what_is_sent_to_others_is_the_limit_only_for_messages_of_ranks() -> None:
    rows = [(0, 1, 1e6, 0.01), *((1, second, second * 50e6, 0.99 * second) for second in range(1, 10))]
    run = _two_hosts(rows, [each * 51e6 for each in range(11)])
    (load,) = link_loads(run)
    assert load.other_nbytes == 450e6 and load.limited_s < 0.1 and load.other_end == "10.0.0.9:80"
    assert [each.kind for each in findings(run)] == []


def test_only_the_time_of_operations_counts() -> None:
    rows = [(0, second, second * 50e6, 0.99 * second) for second in range(1, 10)]
    run = _two_hosts(rows, [each * 51e6 for each in range(10)], ops=(2 * _S, 4 * _S))
    (found,) = [each for each in findings(run) if each.kind == "bottleneck"]
    assert found.seconds == pytest.approx(1.98, abs=0.05) and float(found.evidence["share"]) <= 1


def test_a_counter_that_was_reset_is_no_traffic() -> None:
    rows = [(0, second, second * 50e6, 0.9 * second) for second in range(1, 6)]
    (load,) = link_loads(_two_hosts(rows, [9e9, 9.05e9, 0.0, 5e7, 1e8, 1.5e8]))
    assert load.sent_nbytes == pytest.approx(2e8)


def test_a_wait_now_and_then_makes_no_link_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(0, second, second * 5e6, second * 0.3) for second in range(1, 10)]
    run = _two_hosts(rows, [each * 5.1e6 for each in range(10)])
    (load,) = link_loads(run)
    assert load.limited_s > 2 and math.isnan(load.limited_nbytes_s)
    for rate, kinds in ((load.limited_nbytes_s, []), (5e6, ["bottleneck"])):
        queued = replace(load, num_waits=5.0, limited_nbytes_s=rate)
        monkeypatch.setattr(findings_module, "link_loads", lambda *_, queued=queued: (queued,))
        assert [each.kind for each in findings(run)] == kinds


def test_operations_without_an_end() -> None:
    ranks = [FakeRank(rank, [Op("all_reduce", 1, MS, None)], host=host) for rank, host in enumerate("ab")]
    assert [each.kind for each in findings(fabricate(ranks))] != ["bottleneck"]


def test_of_the_two_ends_of_a_link_the_full_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where acknowledgements wait in a full queue, the other direction waits, too, even longer."""
    run = _two_hosts([(0, second, second * 1e6, second * 0.9) for second in range(10)], [1e6 * n for n in range(10)])
    (link, *_) = (each for each in link_loads(run) if each.host == "a")
    full = replace(link, host="a", peers=("eth0 of b",), limited_s=8.0, limited_nbytes_s=11e6, queue_nbytes_s=12e6,
                   num_waits=5.0, sent_nbytes=1e8, rank_nbytes=5e7)  # fmt: skip
    waiting = replace(full, host="b", peers=("eth0 of a",), limited_s=9.0, limited_nbytes_s=6e6)
    for order in ((waiting, full), (full, waiting)):
        monkeypatch.setattr(findings_module, "link_loads", lambda *_, order=order: order)
        assert [each.evidence["host"] for each in findings(run) if each.kind == "bottleneck"] == ["a"]
