"""Each pass does what it promises, and its result is valid."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hocket.errors import InvalidArgument
from hocket.pipeline import (
    Action,
    CostModel,
    Kind,
    Need,
    PipelineSchedule,
    add_gradient_sync,
    bidirectional,
    build,
    concatenate,
    fill_bubbles,
    linear,
    lower_bound_s,
    lower_messages,
    merge_backward,
    recompute,
    register_kind,
    retime,
    search_list_schedule,
    simulate,
    split_backward,
    validate,
    zigzag,
)
from hocket.pipeline.list_scheduling import Rule, list_schedule
from hocket.sim import Link

from ..naming import raises
from ..tier import sample
from .tables import all_schedules

pytestmark = pytest.mark.timeout(120)

CURVATURE = register_kind(Kind("TESTCOV", "curvature", needs=(Need(("F",)),), cost="TESTCOV"))
INVERSION = register_kind(
    Kind("TESTINV", "inversion", scope="stage", needs=(Need(("TESTCOV",), match=("step", "pipe", "stage")),),
         cost="TESTINV")
)  # fmt: skip


def test_split_and_merge_backward_passes() -> None:
    for schedule in all_schedules():
        split = split_backward(schedule)
        validate(split)
        whole = split.columns.rows("B")
        overlaps = np.bincount(split.columns.groups)[split.columns.groups] > 1
        assert overlaps[whole].all()
        assert simulate(split).makespan_s <= simulate(schedule).makespan_s
        if "I" not in schedule.columns.kinds:
            assert merge_backward(split) == schedule


def test_recompute() -> None:
    """Each backward pass gets one more forward pass; the input of a stage is kept instead of its activation."""
    schedule = build("1f1b", 4, 8)
    costs = CostModel(stash_nbytes={"activation": 10.0, "input": 1.0})
    again = recompute(schedule)
    validate(again)
    timeline = simulate(again)
    assert set(timeline.busy_s) == {8 * (1 + 1 + 2)}
    assert 44 - 3 <= timeline.makespan_s < 44  # some recomputation is hidden while a rank waits for its gradient
    assert simulate(schedule, costs).peak_nbytes.tolist() == [40, 30, 20, 10]
    assert simulate(again, costs).peak_nbytes.tolist() == [4 + 10, 3 + 10, 2 + 10, 1 + 10]
    partly = recompute(schedule, stages=[0])
    assert simulate(partly, costs).peak_nbytes.tolist() == [4 + 10, 30, 20, 10]
    for name in ("dualpipe", "zb-v"):
        validate(recompute(build(name, 4, 8)))
    with raises(InvalidArgument, names=("0", "3", "4")):
        recompute(schedule, stages=[4])
    with raises(InvalidArgument):
        recompute(again)


def test_gradient_sync() -> None:
    schedule = build("chimera", 4, 4)
    costs = CostModel(fabric=Link(0.5, 0.0), gradient_nbytes=1.0)
    made = {mode: add_gradient_sync(schedule, mode, costs) for mode in ("lazy", "eager", "eager-opt")}
    for each in made.values():
        validate(each)
        assert len(each.columns.rows("SYNC_START")) == len(each.columns.rows("SYNC_WAIT")) == 8
    # The middle ranks end with the gradients of the middle stages, so "eager-opt" sums these lazily.
    assert [str(action) for action in made["lazy"].actions[1][-5:]] == [
        "1B1", "1SYNC_START", "1:2SYNC_START", "1SYNC_WAIT", "1:2SYNC_WAIT",
    ]  # fmt: skip
    starts = [str(action) for action in made["eager"].actions[0] if action.kind != "SYNC_WAIT"]
    assert starts.index("1:3SYNC_START") == starts.index("1:3B3") + 1
    times = {mode: simulate(each, costs).makespan_s for mode, each in made.items()}
    assert times["eager-opt"] <= times["lazy"]
    assert add_gradient_sync(build("1f1b", 4, 4), "lazy") == build("1f1b", 4, 4)  # one copy of every stage
    with raises(InvalidArgument, names=("lazy", "eager", "eager-opt", "'soon'")):
        add_gradient_sync(schedule, "soon")
    with raises(InvalidArgument):
        add_gradient_sync(made["lazy"], "lazy")


def test_passes_can_be_combined() -> None:
    """Gradient sums, recomputation, several steps, and messages for any buffers, for every schedule."""
    for schedule in all_schedules():
        whole = concatenate(add_gradient_sync(recompute(schedule), with_step=True), 3)
        validate(whole)
        for buffering in ("tagged", "rendezvous"):
            lowered = lower_messages(whole, buffering)
            validate(lowered, buffering=buffering)
            bare = lowered.without("SEND_F", "RECV_F", "SEND_B", "RECV_B")
            assert bare == whole


def test_lowering_refuses_a_table_with_messages() -> None:
    lowered = lower_messages(build("1f1b", 2, 2))
    with raises(InvalidArgument, names=("SEND_F", "RECV_B", "RECV_F", "SEND_B")):
        lower_messages(lowered)
    kinds = ("SEND_F", "SEND_B", "RECV_F", "RECV_B")
    assert lowered.without(*kinds) == build("1f1b", 2, 2)


def test_retime() -> None:
    """The result is never slower and never needs more memory; weight gradients move into idle time."""
    for costs in (CostModel(), CostModel(seconds={"F": 1.0, "B": 4.0, "I": 1.0, "W": 3.0})):
        for schedule in all_schedules():
            used = set(schedule.columns.kinds)
            if {"B", "I"} <= used:
                with raises(InvalidArgument, names=("W", "F", "I", "B")):
                    retime(schedule, costs)
                continue
            again = retime(schedule, costs)
            validate(again)
            before, after = simulate(schedule, costs), simulate(again, costs)
            assert after.makespan_s <= before.makespan_s
            assert after.peak_nbytes.max() <= before.peak_nbytes.max()
    split = split_backward(build("1f1b", 4, 8))
    assert simulate(retime(split, CostModel())).makespan_s < simulate(split).makespan_s


@pytest.mark.parametrize("name", ["1f1b", "chimera"])
def test_bubbles_are_filled(name: str) -> None:
    """All work is done after its dependencies, and the steps do not take longer."""
    schedule = add_gradient_sync(build(name, 4, 8), with_step=True)
    costs = CostModel(seconds={"F": 1.0, "B": 2.0, "TESTCOV": 0.3, "TESTINV": 1.2})
    works = [
        (rank, Action("TESTCOV", action.stage, action.micro_batch, pipe=action.pipe))
        for rank, actions in enumerate(schedule.actions)
        for action in actions
        if action.kind == "F"
    ]
    works += [
        (rank, Action("TESTINV", stage, pipe=pipe))
        for rank in range(4)
        for pipe, stage in schedule.placement.stages_of(rank)
    ]
    filled, report = fill_bubbles(schedule, works, costs)
    validate(filled)
    assert len(filled) == report.num_steps * len(schedule) + len(works)
    assert report.overrun_s == report.num_appended == 0
    assert simulate(filled, costs).makespan_s == simulate(concatenate(schedule, report.num_steps), costs).makespan_s
    work_s = sum(costs.seconds[action.kind] for _, action in works)  # type: ignore[misc]
    whole_s = 4 * simulate(filled, costs).makespan_s
    assert report.busy_after - report.busy_before == pytest.approx(work_s / whole_s)


def test_work_that_fits_nowhere_is_appended() -> None:
    schedule = build("1f1b", 2, 2)
    costs = CostModel(seconds={"F": 1.0, "B": 2.0, "TESTCOV": 100.0})
    filled, report = fill_bubbles(schedule, [(0, Action("TESTCOV", 0, 0))], costs)
    assert (report.num_appended, report.overrun_s) == (1, 100.0)
    assert filled.actions[0][-1].kind == "TESTCOV"
    for works, names in (
        ([(2, Action("TESTCOV", 0, 0))], ("0", "1", "2")),
        ([(0, Action("TESTINV", 0)), (0, Action("TESTCOV", 0, 0))], "0TESTINV"),
        ([(0, Action("TESTCOV", 0, 0, step=1))], ("step 0", "0TESTCOV0@1")),
    ):
        with raises(InvalidArgument, names=names):
            fill_bubbles(schedule, works, costs)


@pytest.mark.parametrize(("num_ranks", "units"), [(4, 2), (4, 3), (8, 2), (8, 4)])
def test_list_schedules_of_chimera_are_optimal(num_ranks: int, units: int) -> None:
    """More micro-batches than ranks and B = 2F: units leave gaps, a list schedule reaches the lower bound."""
    num_micro_batches = units * num_ranks
    halves = [num_micro_batches // 2] * 2
    placement = bidirectional(num_ranks)
    bound = lower_bound_s(placement, halves)
    assert bound == 3 * num_micro_batches + 3 * (num_ranks / 2 - 1)
    found = build("chimera", num_ranks, num_micro_batches, mode="list")
    assert simulate(found).makespan_s == bound
    assert simulate(build("chimera", num_ranks, num_micro_batches)).makespan_s > bound
    bound = lower_bound_s(placement, halves, splits_backward=True)
    found = build("chimera", num_ranks, num_micro_batches, mode="zero-bubble")
    assert simulate(found).makespan_s == bound
    assert simulate(found).peak_nbytes.max() <= num_ranks


@pytest.mark.parametrize("seconds", sample([{"F": 1.0, "B": 2.0}, {"F": 1.0, "B": 1.0}, {"F": 2.0, "B": 3.0}], 1))
def test_no_order_beats_the_bound(seconds: dict[str, float]) -> None:
    """Compare the bound with all orders of a few small tables."""
    costs = CostModel(seconds=seconds)
    for placement, micro_batches in (
        (linear(2), [[0, 1]]),
        (zigzag(1, 3), [[0]]),
        (bidirectional(2), [[0], [1]]),
        (zigzag(2, 2), [[0]]),
    ):
        counts = [len(each) for each in micro_batches]
        bound = lower_bound_s(placement, counts, costs)
        best = min(
            simulate(each, costs).makespan_s for each in all_orders(list_schedule(placement, micro_batches, costs))
        )
        assert bound <= best + 1e-9


def all_orders(schedule: PipelineSchedule) -> list[PipelineSchedule]:
    """Return every valid table of the same actions."""
    tables = []
    for rows in itertools.product(*(itertools.permutations(actions) for actions in schedule.actions)):
        table = schedule.with_actions(rows)
        try:
            validate(table)
        except ValueError:
            continue
        tables.append(table)
    assert tables
    return tables


def test_too_few_activations_are_refused() -> None:
    with raises(InvalidArgument, names="1"):
        search_list_schedule(zigzag(2, 2), [[0, 1]], rule=Rule(most_kept=1))
    kept = simulate(search_list_schedule(linear(4), [range(8)], rule=Rule(most_kept=2))).peak_nbytes
    assert kept.max() == 2


@pytest.mark.parametrize(("margin", "num_appended"), [(0.0, 0), (0.05, 1)])
def test_a_gap_is_longer_than_the_work_by_the_margin(margin: float, num_appended: int) -> None:
    """Rank 0 of GPipe waits from 2 to 5 s."""
    costs = CostModel(seconds={"F": 1.0, "B": 2.0, "TESTCOV": 2.9})
    works = [(0, Action("TESTCOV", 0, 0))]
    _, report = fill_bubbles(build("gpipe", 2, 2), works, costs, margin=margin, most_steps=1)
    assert report.num_appended == num_appended
