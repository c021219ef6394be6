"""Who is to blame for waits that are handed on: programs whose times follow from the work of their ranks."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.observe import ObservedRun, findings, operations_of, wait_states
from hocket.observe.analysis.delays import imposed_waits

from .fabricated_run import FakeRank, Op, fabricate

_STEPS = 60
_MESSAGE_NS = 20_000


def _imposed(run: ObservedRun) -> np.ndarray:
    operations = operations_of(run)
    return imposed_waits(operations, wait_states(run, operations), len(run.processes))


def _stencil(work_ns: np.ndarray, *, is_ring: bool = True, collective_every: int = 0) -> ObservedRun:
    """Ranks compute, then exchange with both neighbours, one after the other; messages arrive after 20 us.

    Args:
        work_ns: of shape (steps, ranks).
        is_ring: whether the last rank is a neighbour of the first one.
        collective_every: number of steps after which all ranks meet; 0: never.
    """
    num_ranks = work_ns.shape[1]
    now = np.zeros(num_ranks, np.int64)
    ops: list[list[Op]] = [[] for _ in range(num_ranks)]
    for step, work in enumerate(work_ns):
        now = now + work
        for tag, shift in ((1, -1), (2, 1)):
            begin = now.copy()
            for rank in range(num_ranks):
                target, source = rank + shift, rank - shift
                if is_ring:
                    target, source = target % num_ranks, source % num_ranks
                has_target, has_source = 0 <= target < num_ranks, 0 <= source < num_ranks
                end = begin[rank] + 2000
                if has_source:
                    end = max(end, begin[source] + _MESSAGE_NS)
                    ops[rank].append(Op("recv", 0, int(begin[rank]), int(end), peer=source, tag=tag))
                if has_target:
                    ops[rank].append(Op("send", 0, int(begin[rank]) + 50, int(end), peer=target, tag=tag))
                now[rank] = end
        if collective_every and step % collective_every == collective_every - 1:
            end = int(now.max()) + _MESSAGE_NS
            for rank in range(num_ranks):
                ops[rank].append(Op("all_reduce", step, int(now[rank]), end))
            now[:] = end
    regions = {"work": [(0, 1)]}
    return fabricate(FakeRank(rank, each, regions=regions) for rank, each in enumerate(ops))


@pytest.mark.parametrize("collective_every", [0, 7])
@pytest.mark.parametrize("is_ring", [True, False])
@pytest.mark.parametrize("late", [0, 2, 5])
@pytest.mark.parametrize("num_ranks", [4, 6, 9])
def test_a_slow_rank_of_a_stencil(num_ranks: int, late: int, is_ring: bool, collective_every: int) -> None:
    late %= num_ranks
    draw = np.random.default_rng((num_ranks, late))
    work = draw.normal(1e6, 2e4, (_STEPS, num_ranks)).astype(np.int64)
    work[:, late] += 3_000_000
    run = _stencil(work, is_ring=is_ring, collective_every=collective_every)
    imposed = _imposed(run)
    assert imposed[late] > 0.9 * imposed.sum(), imposed
    (first, *others) = findings(run)
    assert (first.kind, first.process, first.layer) == ("straggler", late, "computation")
    assert others == [], [each.text for each in others]


@pytest.mark.parametrize("seed", range(10))
def test_all_waits_are_somebodys(seed: int) -> None:
    draw = np.random.default_rng(seed)
    run = _stencil(draw.exponential(1e6, (_STEPS, 5)).astype(np.int64), collective_every=int(draw.integers(0, 5)))
    operations = operations_of(run)
    waits = wait_states(run, operations)
    imposed = imposed_waits(operations, waits, 5)
    assert imposed.sum() == pytest.approx(waits.rows["wait"].sum()) and (imposed >= 0).all()


def test_two_slow_ranks_share_the_blame() -> None:
    work = np.full((_STEPS, 8), 1_000_000)
    work[:, 1] += 3_000_000
    work[:, 5] += 3_000_000
    imposed = _imposed(_stencil(work))
    assert imposed[[1, 5]].sum() > 0.9 * imposed.sum() and 0.5 < imposed[1] / imposed[5] < 2


def test_equal_ranks_have_no_finding() -> None:
    found = []
    for seed in range(40):
        work = np.random.default_rng(seed).normal(1e6, 1e5, (_STEPS, 6)).astype(np.int64)
        found += [each.evidence for each in findings(_stencil(work))]
    assert found == []
