"""Efficiencies against their definition, step by step."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.observe import efficiencies, findings, operations_of, wait_states

from .fabricated_run import MS, FakeRank, Op, fabricate


@pytest.mark.parametrize("seed", range(10))
def test_the_time_of_each_rank_divided_step_by_step(seed: int) -> None:
    draw = np.random.default_rng(seed)
    num_ranks, num_steps = 4, 12
    arrivals = np.arange(num_steps)[:, None] * 100 + draw.integers(1, 60, (num_steps, num_ranks))
    ends = arrivals.max(1) + draw.integers(1, 20, num_steps)
    run = fabricate(
        FakeRank(
            rank,
            [Op("all_reduce", step, int(arrivals[step, rank]) * MS, int(ends[step]) * MS) for step in range(num_steps)],
        )
        for rank in range(num_ranks)
    )
    operations = operations_of(run)
    (found,) = efficiencies(operations, wait_states(run, operations))
    runtime = int(ends[-1] - arrivals[0].min())
    useful = np.full(num_ranks, runtime)
    waited = moved = 0
    for step in range(num_steps):
        for rank in range(num_ranks):
            useful[rank] -= ends[step] - arrivals[step, rank]
            waited += arrivals[step].max() - arrivals[step, rank]
            moved += ends[step] - arrivals[step].max()
    assert (found.num_ranks, found.runtime_s) == (num_ranks, pytest.approx(runtime * 1e-3))
    assert found.load_balance == pytest.approx(useful.mean() / useful.max())
    assert found.communication == pytest.approx(useful.max() / runtime)
    assert found.parallel == pytest.approx(found.load_balance * found.communication)
    assert found.wait_share == pytest.approx(waited / runtime / num_ranks)
    assert found.transfer_share == pytest.approx(moved / runtime / num_ranks)
    assert found.parallel + found.wait_share + found.transfer_share == pytest.approx(1.0)


def test_what_overlaps_counts_once_and_what_hangs_until_the_end() -> None:
    ops = [
        Op("send", 1, 10 * MS, 30 * MS, peer=1),
        Op("recv", 1, 20 * MS, 40 * MS, peer=1),
        Op("barrier", 1, 60 * MS, None),
    ]
    run = fabricate([FakeRank(0, ops), FakeRank(1, [Op("send", 1, 0, 100 * MS, peer=0)])])
    operations = operations_of(run)
    (found,) = efficiencies(operations, wait_states(run, operations))
    # The first rank has 30 ms of messages and 40 ms of a barrier that never ends; the other one nothing but a message.
    assert (found.parallel, found.communication) == (pytest.approx(0.3 / 2), pytest.approx(0.3))


def test_unknown_waits_make_it_an_upper_bound() -> None:
    def job(is_async: bool) -> bool:
        ranks = [
            FakeRank(rank, [Op("all_reduce", 1, 0, 10 * MS, is_async=is_async)], ring="foreign") for rank in range(2)
        ]
        run = fabricate(ranks)
        operations = operations_of(run)
        (found,) = efficiencies(operations, wait_states(run, operations))
        return found.is_upper_bound

    assert job(is_async=True) and not job(is_async=False)


@pytest.mark.parametrize(("ring", "blocked_ms"), [("operations", 0), ("operations", 20), ("foreign", 0)])
def test_waits_in_asynchronous_operations_count_alike_in_efficiencies_and_stragglers(
    ring: str, blocked_ms: int
) -> None:
    """In each of 40 steps rank 1 comes 50 ms late; rank 0 computes meanwhile, and waits for `blocked_ms` at last."""
    steps: list[list[Op]] = [[], []]
    for begin in range(0, 4000, 100):
        for ops, late in zip(steps, (0, 50), strict=True):
            number, blocked = len(ops), 0 if late else blocked_ms
            ops.append(Op("all_reduce", number, (begin + late) * MS, (begin + 51) * MS, is_async=True,
                          blocked=blocked * MS))  # fmt: skip
            # Rank 0 comes last by a nanosecond: a tie would count for rank 1.
            ops.append(Op("barrier", number + 1, (begin + 90) * MS + (not late), (begin + 91) * MS))
    run = fabricate(
        FakeRank(rank, each, ring=ring, samples=[(0, "running", 0.0, 0.0), (4000 * MS, "running", 2.0, 0.0)])
        for rank, each in enumerate(steps)
    )
    operations = operations_of(run)
    (job,) = efficiencies(operations, wait_states(run, operations))
    total_s = 2 * job.runtime_s
    assert job.wait_share == pytest.approx(40 * blocked_ms * 1e-3 / total_s, abs=1e-6)
    (found,) = findings(run)
    assert found.kind == "straggler" and found.seconds == pytest.approx(40 * 0.05)
    hidden = found.evidence["hidden_share"]
    assert isinstance(hidden, float)
    assert found.seconds * (1 - hidden) == pytest.approx(job.wait_share * total_s, abs=1e-6)
    assert "asynchronous" in found.text
