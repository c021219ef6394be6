"""Ranks that others wait for, and what they did meanwhile, in runs whose causes are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hocket.observe import ObservedRun, Straggler, operations_of, stragglers, wait_states

from .fabricated_run import MS, FakeRank, Op, fabricate

_STEPS = 30
_PERIOD = 20 * MS


def _stragglers(run: ObservedRun) -> tuple[Straggler, ...]:
    operations = operations_of(run)
    return stragglers(run, operations, wait_states(run, operations))


def _ops(arrivals: Sequence[int], ends: Sequence[int]) -> list[Op]:
    return [
        Op("all_reduce", number, begin, end) for number, (begin, end) in enumerate(zip(arrivals, ends, strict=True))
    ]


def _run(
    late: int, work: dict[str, list[tuple[int, int]]], samples: list[tuple[int, str, float, float]]
) -> ObservedRun:
    """Three ranks; one arrives 5 ms later than the others, after 2 to 3 ms of work of each."""
    draw = np.random.default_rng(7)
    starts = [step * _PERIOD for step in range(_STEPS)]
    ranks = []
    for rank in range(3):
        arrivals = [start + int(draw.integers(2 * MS, 3 * MS)) + (5 * MS if rank == late else 0) for start in starts]
        ends = [start + 9 * MS for start in starts]
        everyone = {"forward": [(start, start + 2 * MS) for start in starts]}
        own = {name: times for name, times in work.items() if name != "io"} if rank == late else {}
        ranks.append(
            FakeRank(
                rank,
                _ops(arrivals, ends),
                io=work.get("io", ()) if rank == late else (),
                regions=everyone | own,
                samples=samples if rank == late else (),
            )
        )
    return fabricate(ranks)


def _late_part() -> list[tuple[int, int]]:
    return [(step * _PERIOD + 2 * MS, step * _PERIOD + 7 * MS) for step in range(_STEPS)]


def _samples(cpu_s: float, cpu_wait_s: float, state: str = "running") -> list[tuple[int, str, float, float]]:
    return [(0, "running", 0.0, 0.0), (_STEPS * _PERIOD, state, cpu_s, cpu_wait_s)]


@pytest.mark.parametrize("late", range(3))
@pytest.mark.parametrize(
    ("work", "samples", "layer", "region"),
    [
        ({"augment": _late_part()}, [], "computation", "augment"),
        ({"io": _late_part()}, [], "I/O", ""),
        ({"io": _late_part(), "load": _late_part()}, [], "I/O", "load"),
        ({}, _samples(0.03, 0.0), "not running", ""),
        ({}, _samples(0.03, 0.4), "waiting for a CPU", ""),
    ],
    ids=["computation", "io", "io in a region", "asleep", "preempted"],
)
def test_the_late_rank_and_its_cause(
    late: int,
    work: dict[str, list[tuple[int, int]]],
    samples: list[tuple[int, str, float, float]],
    layer: str,
    region: str,
) -> None:
    worst, *others = _stragglers(_run(late, work, samples))
    assert (worst.process, worst.layer, worst.region) == (late, layer, region)
    # Two ranks wait four to six milliseconds each time, except before the first, to which the way is not known.
    assert worst.imposed_s == pytest.approx(_STEPS * 2 * 0.005, rel=0.1)
    assert (worst.num_late, worst.num_compared) == (_STEPS, _STEPS)
    assert 0.004 < worst.low_s <= worst.longer_s <= worst.high_s < 0.006
    assert sum(worst.by_layer.values()) == pytest.approx(worst.imposed_s)
    assert sum(each.imposed_s for each in others) == 0 and worst.share == 1.0


def test_what_a_process_computed_while_it_began_is_not_of_its_ways() -> None:
    """Rank 1 sleeps 8 ms before each collective; a sample before the first one has its start-up, at full speed."""
    begin, period, work = 100 * MS, 10 * MS, 2 * MS
    samples = [(at * MS, "sleeping", cpu_s, 0.0) for at, cpu_s in ((0, 0.0), (170, 0.17), (270, 0.19), (310, 0.22))]
    ranks = []
    for rank in range(2):
        arrivals = [begin + step * period + (period if rank else work) for step in range(20)]
        ends = [begin + (step + 1) * period + 1000 for step in range(20)]
        ranks.append(FakeRank(rank, _ops(arrivals, ends), samples=samples if rank else ()))
    (worst,) = _stragglers(fabricate(ranks))
    assert (worst.process, worst.layer) == (1, "not running")


def test_a_rank_that_waits_for_messages() -> None:
    ranks = []
    for rank, process in enumerate(_run(1, {}, []).processes):
        events = process.events["operations"]
        ops = _ops(events["t_begin"].tolist(), events["t_end"].tolist())
        messages = enumerate(_late_part()) if rank == 1 else ()
        ops += [Op("recv", number, begin, end, peer=0) for number, (begin, end) in messages]
        ranks.append(FakeRank(rank, ops))
    worst = _stragglers(fabricate(ranks))[0]
    assert (worst.process, worst.layer) == (1, "messages")


def test_asynchronous_collectives_count_from_issue_to_issue() -> None:
    """Buckets of gradients are issued while the program goes on; one rank reads a file before the second one."""
    ranks = []
    for rank in range(3):
        late = 6 * MS if rank == 2 else 0
        ops = []
        for step in range(10):
            start = step * 30 * MS
            ops += [
                Op("all_reduce", 2 * step, start, start + 12 * MS, is_async=True),
                Op("all_reduce", 2 * step + 1, start + 3 * MS + late, start + 13 * MS, is_async=True),
            ]
        io = [(step * 30 * MS + 2 * MS, step * 30 * MS + 8 * MS) for step in range(10)] if rank == 2 else []
        ranks.append(FakeRank(rank, ops, io=io))
    worst = _stragglers(fabricate(ranks))[0]
    assert (worst.process, worst.layer, worst.num_late) == (2, "I/O", 10)
    assert worst.imposed_s == pytest.approx(10 * 2 * 0.006)


@pytest.mark.parametrize("seed", range(10))
def test_ways_are_compared_with_the_median_of_the_others(seed: int) -> None:
    draw = np.random.default_rng(seed)
    num_ranks, num_steps = int(draw.integers(2, 7)), 25  # a part of its own for each
    arrivals = draw.integers(0, 9 * MS, (num_steps, num_ranks)) + np.arange(num_steps)[:, None] * _PERIOD
    ends = arrivals.max(1) + MS
    ops = [_ops(arrivals[:, rank].tolist(), ends.tolist()) for rank in range(num_ranks)]
    run = fabricate([FakeRank(rank, each) for rank, each in enumerate(ops)])
    ways = np.vstack([np.zeros(num_ranks), arrivals[1:] - ends[:-1, None]]) * 1e-9
    for found in _stragglers(run):
        longer = ways[:, found.process] - np.median(np.delete(ways, found.process, axis=1), axis=1)
        assert found.longer_s == pytest.approx(np.median(longer), abs=1e-9)
        assert found.low_s < found.longer_s < found.high_s


def test_a_late_sender_in_a_ring() -> None:
    """Each rank sends to the next one and receives from the previous one; one of four reads a file before."""
    ops: list[list[Op]] = [[] for _ in range(4)]
    io = []
    now = np.zeros(4, np.int64)
    for step in range(_STEPS):
        io.append((int(now[2]), int(now[2]) + 6 * MS))
        now = now + MS + np.array([0, 0, 6 * MS, 0])
        sent = now.copy()
        for rank in range(4):
            now[rank] = max(sent[rank], sent[rank - 1]) + 5000
            ops[rank] += [
                Op(
                    "send",
                    step,
                    int(sent[rank]),
                    int(sent[rank]) + 1000,
                    peer=(rank + 1) % 4,
                    is_async=True,
                    blocked=1000,
                ),
                Op("recv", step, int(sent[rank]) + 2000, int(now[rank]), peer=(rank - 1) % 4),
            ]
    run = fabricate(FakeRank(rank, ops[rank], io=io if rank == 2 else ()) for rank in range(4))
    worst, *others = _stragglers(run)
    assert (worst.process, worst.layer, worst.num_compared) == (2, "I/O", 2 * _STEPS)
    assert worst.share > 0.95 and worst.low_s > 0.002
    assert sum(each.imposed_s for each in others) < 0.05 * worst.imposed_s
