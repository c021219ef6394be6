"""Collectives beside I/O: an effect that was put in, and none where I/O is as often but does nothing."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.observe import Contention, ObservedRun, contentions, operations_of, wait_states

from .fabricated_run import MS, FakeRank, Op, fabricate

_NUM_STEPS = 200


def _contentions(run: ObservedRun) -> tuple[Contention, ...]:
    operations = operations_of(run)
    return contentions(run, operations, wait_states(run, operations))


def _run(seed: int, slowdown: float, *, late_ms: int = 0) -> ObservedRun:
    """Two ranks; bursts of I/O of 10 steps, during which an all_reduce takes so many times as long."""
    draw = np.random.default_rng(seed)
    is_busy = np.repeat(draw.random(_NUM_STEPS // 10) < 0.4, 10)
    is_busy[:10], is_busy[10:20] = True, False
    ops: list[list[Op]] = [[], []]
    for step in range(_NUM_STEPS):
        start = step * 20 * MS
        arrivals = [start + int(draw.integers(1, MS)), start + int(draw.integers(1, MS)) + late_ms * MS * is_busy[step]]
        took = float(draw.lognormal(np.log(3 * MS), 0.2)) * (slowdown if is_busy[step] else 1.0)
        for rank in range(2):
            ops[rank].append(Op("all_reduce", step, int(arrivals[rank]), int(max(arrivals) + took), nbytes=1000))
    io = [(step * 20 * MS, (step + 1) * 20 * MS) for step in np.flatnonzero(is_busy).tolist()]
    return fabricate([FakeRank(0, ops[0], io=io), FakeRank(1, ops[1])])


def _durations(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds from the last arrival to the end of each collective, and whether it was in a burst."""
    run = _run(seed, 1.6)
    events = [process.events["operations"] for process in run.processes]
    arrivals = np.maximum(*(each["t_begin"] for each in events)).astype(np.int64)
    starts = run.processes[0].events["io"]["t_begin"].astype(np.int64)
    return (events[0]["t_end"].astype(np.int64) - arrivals) * 1e-9, np.isin(arrivals // (20 * MS), starts // (20 * MS))


def test_an_effect_that_was_put_in() -> None:
    num_covered = 0
    for seed in range(20):
        (found,) = _contentions(_run(seed, 1.6))
        assert (found.op, found.library, found.least_nbytes, found.most_nbytes) == ("all_reduce", "shm", 512, 1023)
        seconds, is_busy = _durations(seed)
        usual = np.median(seconds[~is_busy])
        assert found.ratio == pytest.approx(np.median(seconds[is_busy]) / usual)
        assert found.seconds == pytest.approx((seconds[is_busy] - usual).sum())
        assert found.low > 1.25 and found.high < 2.1 and found.control < found.ratio
        assert (found.num_during, found.num_without) == (is_busy.sum(), (~is_busy).sum())
        num_covered += found.low <= 1.6 <= found.high
    assert num_covered >= 19  # 95 % of them are expected at least


@pytest.mark.parametrize("seed", range(40))
def test_io_that_does_nothing(seed: int) -> None:
    assert _contentions(_run(seed, 1.0)) == ()


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_io_makes_late_is_no_contention(seed: int) -> None:
    """The others wait longer, but the operation itself takes as long as before."""
    assert _contentions(_run(seed, 1.0, late_ms=5)) == ()


def test_io_all_the_time_has_nothing_to_compare_with() -> None:
    run = _run(0, 2.0)
    ranks = [
        FakeRank(rank, [Op("all_reduce", number, int(event["t_begin"]), int(event["t_end"]))
                        for number, event in enumerate(process.events["operations"])],
                 io=[(0, _NUM_STEPS * 20 * MS)])
        for rank, process in enumerate(run.processes)
    ]  # fmt: skip
    assert _contentions(fabricate(ranks)) == ()
