"""Simulated schedules agree with the formulas of their papers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hocket.pipeline.costs import CostModel
from hocket.pipeline.registry import build, recipes
from hocket.pipeline.simulation import simulate

pytestmark = pytest.mark.timeout(120)

SLOTS = CostModel(seconds={"F": 1.0, "B": 1.0})
CHIMERA = [
    (num_ranks, num_pairs)
    for num_ranks in range(2, 33, 2)
    for num_pairs in range(1, num_ranks // 2 + 1)
    if num_ranks // 2 % num_pairs == 0
]


def pieces(per_rank: int, **seconds: float) -> CostModel:
    """Return the costs of stages when each rank has `per_rank` of them."""
    return CostModel(seconds={name: value / per_rank for name, value in seconds.items()})


@pytest.mark.parametrize(("num_ranks", "num_pairs"), CHIMERA)
def test_chimera(num_ranks: int, num_pairs: int) -> None:
    """arXiv 2107.06925, tables 2 and 3, for any number of micro-batches."""
    pipes = 2 * num_pairs
    for num_micro_batches in {1, num_ranks // 2, num_ranks, num_ranks + 1, 3 * num_ranks}:
        schedule = build("chimera", num_ranks, num_micro_batches, num_pairs=num_pairs)
        timeline = simulate(schedule, SLOTS)
        units = math.ceil(num_micro_batches / num_ranks)
        in_last = num_micro_batches - (units - 1) * num_ranks
        slots = 2 * num_ranks * units + 2 * math.ceil(in_last / pipes) - 2
        assert timeline.makespan_s == slots
        assert all(len(schedule.placement.stages_of(rank)) == pipes for rank in range(num_ranks))
        if num_micro_batches % num_ranks:
            continue
        bubble = (num_ranks - pipes) / (pipes * num_micro_batches + num_ranks - pipes)
        assert timeline.bubble("sync") == pytest.approx(bubble, abs=1e-12)
        kept = timeline.peak_nbytes
        assert (kept.min(), kept.max()) == (num_ranks - num_ranks // pipes + 1, num_ranks)
        weights = simulate(schedule, CostModel(weight_nbytes=1.0, stash_nbytes={})).peak_nbytes
        assert set(weights) == {pipes}


@pytest.mark.parametrize("num_ranks", [2, 4, 6, 8, 16, 32])
def test_chimera_critical_path(num_ranks: int) -> None:
    """C_f = D and C_b = 2D - 2 for N = D (section 3.4); the second B is no multiple of F, which makes counts unique."""
    schedule = build("chimera", num_ranks, num_ranks)
    for backward in (2.0, 2.0 + math.pi / 100):
        timeline = simulate(schedule, CostModel(seconds={"F": 1.0, "B": backward}))
        assert timeline.makespan_s == pytest.approx(num_ranks + (2 * num_ranks - 2) * backward)
        kinds = [schedule.action(row).kind for row in timeline.critical_path()]
        assert (kinds.count("F"), kinds.count("B")) == (num_ranks, 2 * num_ranks - 2)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("backward", [1.0, 2.0, 2.7])
def test_gpipe_and_1f1b(num_ranks: int, backward: float) -> None:
    """Both have the same bubbles; GPipe keeps all micro-batches, 1F1B D - s of them."""
    for num_micro_batches in (1, num_ranks, 2 * num_ranks + 1, 4 * num_ranks):
        costs = CostModel(seconds={"F": 1.0, "B": backward})
        for name in ("gpipe", "1f1b"):
            timeline = simulate(build(name, num_ranks, num_micro_batches), costs)
            assert timeline.makespan_s == pytest.approx((num_micro_batches + num_ranks - 1) * (1 + backward))
            ratio = (num_ranks - 1) / (num_micro_batches + num_ranks - 1)
            assert timeline.bubble() == pytest.approx(ratio, abs=1e-12)
            kept = [num_micro_batches] * num_ranks
            if name == "1f1b":
                kept = [min(num_micro_batches, num_ranks - stage) for stage in range(num_ranks)]
            assert timeline.peak_nbytes.tolist() == kept


@pytest.mark.parametrize("num_loops", [2, 3, 4])
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_interleaved(num_ranks: int, num_loops: int) -> None:
    """arXiv 2104.04473, section 2.2.2: bubble time (D - 1)(F + B)/v."""
    for num_micro_batches in (num_ranks, 4 * num_ranks):
        schedule = build("interleaved", num_ranks, num_micro_batches, num_loops=num_loops)
        timeline = simulate(schedule, pieces(num_loops, F=1.0, B=2.0))
        bubble_s = (num_ranks - 1) * 3.0 / num_loops
        assert timeline.makespan_s == pytest.approx(3.0 * num_micro_batches + bubble_s)
        assert timeline.bubble() == pytest.approx((num_ranks - 1) / (num_loops * num_micro_batches + num_ranks - 1))


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 16])
def test_zero_bubble_h(num_ranks: int) -> None:
    """arXiv 2401.10241, table 1: bubble time and memory, and no bubble in the span of ZB-H2."""
    for num_micro_batches in (2 * num_ranks, 3 * num_ranks + 1):
        first = simulate(build("zb-h1", num_ranks, num_micro_batches))
        assert first.makespan_s == 3 * num_micro_batches + (num_ranks - 1)  # (D - 1)(F + I - W), all of them 1
        assert set(first.peak_nbytes) == {num_ranks}
        second = simulate(build("zb-h2", num_ranks, num_micro_batches))
        assert second.bubble("span") == pytest.approx(0.0, abs=1e-12)
        assert second.bubble("sync") > 0.0  # a different ratio of the same table
        assert set(second.peak_nbytes) == {2 * num_ranks - 1}
    costs = CostModel(seconds={"F": 1.0, "I": 1.25, "W": 0.75})
    timeline = simulate(build("zb-h1", num_ranks, 4 * num_ranks), costs)
    assert timeline.makespan_s == pytest.approx(3.0 * 4 * num_ranks + (num_ranks - 1) * (1.0 + 1.25 - 0.75))


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 16])
def test_zb_v(num_ranks: int) -> None:
    """arXiv 2401.10241, section 6: the memory of 1F1B, 2D half stages, and no bubble in the span."""
    for num_micro_batches in (2 * num_ranks - 1, 2 * num_ranks, 4 * num_ranks):
        timeline = simulate(build("zb-v", num_ranks, num_micro_batches), pieces(2, F=1.0, I=1.0, W=1.0))
        assert timeline.bubble("span") == pytest.approx(0.0, abs=1e-12)
        assert timeline.makespan_s == 3 * num_micro_batches + (num_ranks - 1) / 2
        assert timeline.peak_nbytes.max() == 2 * num_ranks


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("both", [3.0, 2.75, 2.5])
def test_dualpipe(num_ranks: int, both: float) -> None:
    """The published table of DualPipe: bubble time (PP/2 - 1)(F&B + B - 3W), activations PP + 1.

    It is exact for F = I = W; it does not contain F.
    """
    backward, weight = 2.0, 1.0
    seconds = {"F": 1.0, "B": backward, "I": 1.0, "W": weight}
    for num_micro_batches in (2 * num_ranks, 4 * num_ranks):
        costs = CostModel(seconds=seconds, overlapped_s={"F&B": both})
        timeline = simulate(build("dualpipe", num_ranks, num_micro_batches), costs)
        idle_s = timeline.makespan_s - timeline.busy_s
        assert idle_s.max() == pytest.approx((num_ranks / 2 - 1) * (both + backward - 3 * weight))
        assert timeline.peak_nbytes.max() == num_ranks + 1
        timeline = simulate(build("dualpipe-v", num_ranks, num_micro_batches), costs)
        idle_s = timeline.makespan_s - timeline.busy_s  # here PP is the number of stages, 2D
        assert idle_s.max() == pytest.approx((num_ranks - 1) * (both + backward - 3 * weight))
        assert timeline.peak_nbytes.max() == 2 * num_ranks + 1
    weights = CostModel(weight_nbytes=1.0, stash_nbytes={})
    for name in ("dualpipe", "dualpipe-v", "zb-v"):
        assert set(simulate(build(name, num_ranks, 2 * num_ranks), weights).peak_nbytes) == {2}


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 16])
def test_gems(num_ranks: int) -> None:
    """One activation per rank, and a bubble ratio that approaches (D - 1)/(D + 1/2) (arXiv 2107.06925, table 2)."""
    timeline = simulate(build("gems", num_ranks, 400))
    assert set(timeline.peak_nbytes) == {1}
    assert timeline.bubble() == pytest.approx((num_ranks - 1) / (num_ranks + 0.5), abs=0.01)


def test_published_comparison() -> None:
    """The time of all schedules for D = 8, N = 16, F = 1 and B = 2, with the same work per rank."""
    halves = pieces(2, F=1.0, B=2.0, I=1.0, W=1.0)
    expected = {
        "gpipe": (69, None), "1f1b": (69, None), "interleaved": (58.5, halves), "zb-h1": (55, None),
        "zb-v": (51.5, halves), "chimera": (66, None), "dualpipe": (54, None), "dualpipe-v": (55, halves),
    }  # fmt: skip
    for name, (makespan, costs) in expected.items():
        assert simulate(build(name, 8, 16), costs).makespan_s == makespan, name
    assert [simulate(build("chimera", 8, 16, num_pairs=pairs)).makespan_s for pairs in (2, 4)] == [54, 48]


def test_every_recipe_has_its_description() -> None:
    names = {each.name for each in recipes()}
    assert names >= {
        "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v", "gems", "hanayo",
        "chimera", "list",
    }  # fmt: skip
    assert all(each.description and each.reference and each.bubble for each in recipes())


def test_hanayo_bubbles_decrease_with_waves() -> None:
    ratios = []
    for waves in (1, 2, 4):
        costs = pieces(2 * waves, F=1.0, B=2.0)
        ratios.append(simulate(build("hanayo", 8, 8, num_waves=waves), costs).bubble())
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] < ratios[0] / 2
    assert np.isfinite(ratios).all()
