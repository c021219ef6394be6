"""Waits in collectives against a loop over ranks, and what cannot be compared."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.observe import ObservedRun, WaitStates, operations_of, wait_states

from .fabricated_run import MS, FakeRank, Op, fabricate

_ALL_WAIT = ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_allv")


def _waits(run: ObservedRun) -> WaitStates:
    return wait_states(run, operations_of(run))


@pytest.mark.parametrize("seed", range(20))
def test_waits_are_those_of_a_loop_over_ranks(seed: int) -> None:
    draw = np.random.default_rng(seed)
    num_ranks, num_collectives = int(draw.integers(2, 6)), 12
    kinds = draw.choice([*_ALL_WAIT, "broadcast", "scatter", "reduce", "gather"], num_collectives)
    roots = draw.integers(0, num_ranks, num_collectives)
    begins = np.arange(num_collectives)[:, None] * 100 + draw.integers(1, 90, (num_collectives, num_ranks))
    expected: dict[tuple[int, int], tuple[float, int]] = {}
    ops: list[list[Op]] = [[] for _ in range(num_ranks)]
    for number, (kind, root, arrivals) in enumerate(zip(kinds, roots, begins, strict=True)):
        last = int(np.argmax(arrivals + np.arange(num_ranks) / 100))  # of equal ones the highest rank
        for rank, arrival in enumerate(arrivals):
            if kind in _ALL_WAIT:
                wait = int(arrivals[last] - arrival)
            elif kind in ("broadcast", "scatter"):
                wait = max(int(arrivals[root] - arrival), 0)
            else:
                wait = int(arrivals[last] - arrival) if rank == root else 0
            late = root if kind in ("broadcast", "scatter") else last
            expected[number, rank] = wait * MS / 1e9, int(late)
            end = (int(arrival) + wait + 1) * MS
            peer = -1 if kind in _ALL_WAIT else int(root)
            ops[rank].append(Op(str(kind), number, int(arrival) * MS, end, peer=peer))
    run = fabricate([FakeRank(rank, each) for rank, each in enumerate(ops)])
    operations = operations_of(run)
    waits = wait_states(run, operations)
    assert (waits.num_collectives, waits.num_incomplete, waits.num_mismatched) == (num_collectives, 0, 0)
    numbers = operations.rows["number"][waits.rows["row"]]
    found = {
        (int(number), int(row["process"])): (float(row["wait"]), int(row["late_process"]))
        for number, row in zip(numbers, waits.rows, strict=True)
    }
    assert found.keys() == expected.keys()
    for key, (wait, late) in expected.items():
        assert found[key][0] == pytest.approx(wait, abs=1e-9) and found[key][1] == late, key


def test_a_wait_ends_with_the_operation() -> None:
    """An asynchronous broadcast may end before its last member begins it."""
    run = fabricate([
        FakeRank(0, [Op("all_reduce", 1, 0, 4 * MS)]), FakeRank(1, [Op("all_reduce", 1, 9 * MS, 10 * MS)]),
    ])  # fmt: skip
    assert _waits(run).rows["wait"].tolist() == pytest.approx([0.004, 0.0])


def test_a_moment_of_waits_in_several_collectives_counts_once() -> None:
    """The buckets of DDP are under way at the same time: 120 % of the time of a rank were no waits."""
    begins = [(0, 10, 12), (30, 40, 41)]
    run = fabricate(
        FakeRank(
            rank, [Op("all_reduce", number, begin * MS, 90 * MS, is_async=True) for number, begin in enumerate(own)]
        )
        for rank, own in enumerate(begins)
    )
    states = wait_states(run, operations_of(run))
    waits = {int(row["group"]): float(row["wait"]) for row in states.rows if row["process"] == 0}
    assert waits == pytest.approx({0: 0.030, 1: 0.010, 2: 0.001})
    assert all(row["wait"] == 0 for row in states.rows if row["process"] == 1)


def test_what_cannot_be_compared_is_counted() -> None:
    first = [Op("barrier", 1, 0, MS), Op("all_reduce", 2, 2 * MS, 3 * MS), Op("barrier", 3, 4 * MS, None)]
    second = [Op("barrier", 1, 0, MS), Op("all_gather", 2, 2 * MS, 3 * MS)]
    waits = _waits(fabricate([FakeRank(0, first), FakeRank(1, second)]))
    assert (waits.num_collectives, waits.num_incomplete, waits.num_mismatched) == (1, 1, 1)


def test_two_communicators_of_one_name_are_not_mixed() -> None:
    """Halves of the job with the same label, and two duplicates of the world, made in the same order."""

    def half(rank: int) -> FakeRank:
        members = "0-1" if rank < 2 else "2-3"
        communicators = {7: ("split", members, rank % 2), 8: ("dup", "0-3", rank), 9: ("dup", "0-3", rank)}
        begin = (1 + rank) * MS
        return FakeRank(
            rank,
            [Op("barrier", 1, begin, 9 * MS, comm=7), Op("barrier", 1, begin + 10 * MS, 19 * MS, comm=9),
             Op("barrier", 1, begin + 20 * MS, 29 * MS, comm=8)],
            communicators=communicators,
        )  # fmt: skip

    run = fabricate(half(rank) for rank in range(4))
    operations = operations_of(run)
    assert [(each.label, each.size) for each in operations.communicators] == [
        ("split", 2), ("dup", 4), ("dup", 4), ("split", 2),
    ]  # fmt: skip
    waits = wait_states(run, operations)
    assert (waits.num_collectives, waits.num_incomplete, waits.num_mismatched) == (4, 0, 0)
    assert sorted(waits.rows["wait"].round(6).tolist()) == [
        0,
        0,
        0,
        0,
        0.001,
        0.001,
        0.001,
        0.001,
        0.002,
        0.002,
        0.003,
        0.003,
    ]


def test_jobs_of_one_run_are_not_mixed() -> None:
    """Two jobs one after the other, and two at the same time that their launcher tells apart."""
    ops = [Op("barrier", 1, MS, 2 * MS)]
    later = [FakeRank(rank, [Op("barrier", 1, 60 * MS, 61 * MS)], start_ns=50 * MS) for rank in range(2)]
    run = fabricate([*(FakeRank(rank, ops) for rank in range(2)), *later], world_size=2)
    assert _waits(run).num_collectives == 2
    both = [
        FakeRank(rank, ops, variables={"MASTER_PORT": port}) for port in ("29500", "29501") for rank in range(2)
    ]  # fmt: skip
    run = fabricate(both, world_size=2)
    assert _waits(run).num_collectives == 2
    assert {each.job for each in operations_of(run).communicators} == {0, 1}


def test_a_run_without_collectives() -> None:
    waits = _waits(fabricate([FakeRank(0, [Op("send", 1, 0, MS, peer=1)]), FakeRank(None)]))
    assert (len(waits.rows), waits.num_collectives) == (0, 0)


@pytest.mark.parametrize("seed", range(10))
def test_receivers_wait_for_late_senders(seed: int) -> None:
    draw = np.random.default_rng(seed)
    num_messages = 15
    sent = np.arange(num_messages) * 100 + draw.integers(0, 90, num_messages)
    received = np.arange(num_messages) * 100 + draw.integers(0, 90, num_messages)
    tags = draw.integers(0, 2, num_messages)
    ends = np.maximum(sent, received) + 1
    sends = [
        Op("send", 0, int(at) * MS, int(at) * MS + 1, peer=1, tag=int(tag)) for at, tag in zip(sent, tags, strict=True)
    ]
    receives = [
        Op("recv", 0, int(at) * MS, int(end) * MS, peer=0, tag=int(tag))
        for at, end, tag in zip(received, ends, tags, strict=True)
    ]
    waits = _waits(fabricate([FakeRank(0, sends), FakeRank(1, receives)]))
    assert (waits.num_messages, waits.num_collectives) == (num_messages, 0)
    # The n-th message of a tag is the n-th there.
    expected = 0
    for tag in (0, 1):
        own = tags == tag
        expected += np.clip(np.sort(sent[own]) - np.sort(received[own]), 0, None).sum()
    of_receiver = waits.rows[waits.rows["process"] == 1]
    assert of_receiver["wait"].sum() == pytest.approx(expected * 1e-3)
    assert waits.rows[waits.rows["process"] == 0]["wait"].sum() == 0
    assert set(waits.rows["late_process"][waits.rows["wait"] > 0].tolist()) <= {0}


def test_messages_that_cannot_be_matched_are_left_out() -> None:
    """Of one tag the third send was not recorded; another one has both sides."""
    sends = [Op("send", 0, step * MS, step * MS + 1, peer=1, tag=4) for step in range(2)]
    receives = [Op("recv", 0, step * MS, step * MS + 1, peer=0, tag=4) for step in range(3)]
    sends.append(Op("send", 0, 30 * MS, 31 * MS, peer=1, tag=5))
    receives.append(Op("recv", 0, 20 * MS, 31 * MS, peer=0, tag=5))
    waits = _waits(fabricate([FakeRank(0, sends), FakeRank(1, receives)]))
    assert waits.num_messages == 1 and waits.rows["wait"].tolist() == pytest.approx([0, 0.01])


def test_an_asynchronous_receive_waits_as_long_as_its_caller_did() -> None:
    receive = Op("recv", 0, 0, 50 * MS, peer=0, is_async=True, blocked=3 * MS)
    waits = _waits(fabricate([FakeRank(0, [Op("send", 0, 40 * MS, 41 * MS, peer=1)]), FakeRank(1, [receive])]))
    assert waits.rows["wait"].tolist() == pytest.approx([0, 0.003])
