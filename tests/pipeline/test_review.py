"""Regression tests of earlier defects."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hocket.errors import InvalidArgument, InvalidSchedule, MisplacedAction, MissingAction, StashLeak
from hocket.pipeline import (
    Action,
    CostModel,
    Kind,
    ModelCosts,
    Need,
    PipelineSchedule,
    Rule,
    Stash,
    add_gradient_sync,
    bottleneck_partition,
    build,
    choose,
    custom,
    fill_bubbles,
    linear,
    load_text,
    lower_bound_s,
    lower_messages,
    merge_backward,
    recompute,
    register_kind,
    retime,
    search_list_schedule,
    simulate,
    validate,
)
from hocket.pipeline.bound import bound_of
from hocket.pipeline.formats import torch_csv
from hocket.sim import Hosts, Link

from ..naming import raises
from .tables import rows_of

pytestmark = pytest.mark.timeout(120)

HEAD = "hocket pipeline schedule, version 1\nmicro-batches: 2\npipe 0: 0 1\n"
register_kind(Kind("FILLER", "work for tests", needs=(Need(("F",)),), cost="FILLER"))


def test_sums_use_the_slowest_link_of_all_replicas() -> None:
    hosts = Hosts(Link.of(2, 100), Link.of(30, 1), 8)
    costs = CostModel(fabric=hosts, gradient_nbytes=1e9, num_replicas=8)
    assert costs.all_reduce_s(1e9, [0], 2) == pytest.approx(2 * 3 * 30e-6 + 2 * 7 / 8 * 1.0, rel=1e-6)
    best = choose(ModelCosts(2, 1e-3, gradient_nbytes=1e9), 16, 16, names=["1f1b"], fabric=hosts)[0]
    assert best.step_s > 1.5


def test_mixed_tables_do_not_beat_their_bound() -> None:
    costs = CostModel(seconds={"F": 1.0, "B": 1.5, "I": 1.0, "W": 1.0})
    for name, num_ranks, num_micro_batches in (("dualpipe", 4, 8), ("dualpipe", 4, 16), ("dualpipe-v", 2, 32)):
        schedule = build(name, num_ranks, num_micro_batches)
        bound = bound_of(schedule, costs)
        assert bound is not None
        assert bound <= simulate(schedule, costs).makespan_s


def test_work_goes_before_what_a_rank_waits_for() -> None:
    costs = CostModel(seconds={"F": 1.0, "B": 2.0, "FILLER": 0.5})
    lowered = lower_messages(build("1f1b", 4, 4))
    works = [(rank, Action("FILLER", rank, 0)) for rank in range(4)]
    filled, report = fill_bubbles(lowered, works, costs)
    validate(filled)
    assert (report.overrun_s, report.num_appended) == (0.0, 0)
    assert report.busy_after > report.busy_before
    replicas = replace(costs, fabric=Link(5.0, 0.0), num_replicas=2)
    synced = add_gradient_sync(build("1f1b", 1, 2), "lazy", replicas, with_step=True)
    filled, report = fill_bubbles(synced, [(0, Action("FILLER", 0, 0)), (0, Action("FILLER", 0, 1))], replicas)
    assert report.overrun_s == 0.0
    with raises(InvalidArgument, names=("0B0", "0R0")):
        fill_bubbles(build("1f1b", 2, 2), [(0, Action("R", 0, 0))], CostModel())


def test_the_critical_path_adds_up() -> None:
    """With limited buffers, and through gradient sums."""
    for name in ("1f1b", "zb-h1", "interleaved"):
        for buffering in ("rendezvous", "fifo:1"):
            schedule = lower_messages(build(name, 4, 8), buffering)
            timeline = simulate(schedule, buffering=buffering)
            path = timeline.critical_path()
            assert float((timeline.end_s - timeline.begin_s)[path].sum()) == timeline.makespan_s
    costs = CostModel(fabric=Link(0.0, 1.0), gradient_nbytes=[1.0, 75.0])
    synced = add_gradient_sync(build("chimera", 2, 2), "eager", costs)
    timeline = simulate(synced, costs)
    assert "SYNC_START" in [synced.action(row).kind for row in timeline.critical_path()]


def test_sums_need_all_copies() -> None:
    synced = add_gradient_sync(build("chimera", 2, 2), with_step=True)
    for kind in ("SYNC_START", "SYNC_WAIT"):
        rows = [[each for each in row if (each.kind, each.pipe) != (kind, 1)] for row in rows_of(synced)]
        with raises(MissingAction, names=("stage 0", "pipe 1", kind)):
            validate(synced.with_actions(rows))
    one_pipe = add_gradient_sync(
        build("chimera", 2, 1), with_step=True
    )  # pipe 1 has no micro-batch, but receives the sum
    validate(one_pipe)
    assert len(one_pipe.columns.rows("STEP")) == len(one_pipe.columns.rows("SYNC_WAIT")) == 4


def test_choose_without_enough_layers() -> None:
    with raises(InvalidArgument, names="4"):
        choose(ModelCosts(4, 1e-3), 4, 1, names=["zb-v"])


def test_list_schedules_of_odd_placements() -> None:
    for placement, micro_batches in (
        (custom([0, 1, 1, 1, 1, 1]), [range(4)]),
        (custom([[0, 1], [1, 2]]), [range(2), range(2, 4)]),
    ):
        validate(search_list_schedule(placement, micro_batches))
    validate(search_list_schedule(linear(1), [range(8)], rule=Rule(forward_width=4)))
    with raises(InvalidArgument, names=("1", "2")):
        search_list_schedule(linear(2), [range(1), range(1)])
    with raises(InvalidArgument, names=("2", "1")):
        lower_bound_s(custom([[0, 1], [1, 0]]), [2])
    with raises(InvalidArgument, names=("forward_width", "1", "0")):
        Rule(forward_width=0)


def test_large_numbers_are_refused() -> None:
    with raises(InvalidSchedule, names=("row 1", "column 1", "'99999999999F0'", "2F0")):
        torch_csv.load("99999999999F0\n")
    with raises(InvalidSchedule, names="stage 0"):
        torch_csv.load("999999999F0\n")
    with raises(InvalidSchedule, names=("line 2", "micro-batches", "'1000000000000'")):
        load_text(HEAD.replace("2", "1000000000000") + "rank 0: 0F0\nrank 1: 1F0\n")
    with raises(InvalidSchedule, names=("999999999", "268435456")):
        load_text(HEAD.replace("micro-batches: 2", "micro-batches: 999999999") + "rank 0: 0F0\nrank 1: 1F0\n")
    with raises(InvalidArgument, names=("1", "1000000000", "16777216")):
        build("1f1b", 10**9, 1)


def test_edges_have_one_form() -> None:
    schedule = build("1f1b", 3, 2)
    for edges in (((0, 1), (0, 1), (1, 2)), ((1, 2), (0, 1)), [[0, 1], [1, 2]]):
        again = replace(schedule, edges=edges)  # type: ignore[arg-type]
        assert again.is_chain
        assert again == schedule
        assert hash(again) == hash(schedule)


def test_both_ends_of_a_message_must_agree() -> None:
    table = "rank 0: 0F0-1 0SEND_F0-1 0RECV_B0 0B0 0RECV_B1 0B1\n"
    other = "rank 1: 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1\n"
    with raises(MisplacedAction, names=("rank 1", "[1RECV_F0>0]", "0SEND_F0-1>1")):
        validate(load_text(HEAD + table + other))


def test_merging_leaves_overlaps_alone() -> None:
    schedule = load_text(HEAD + "rank 0: 0F0 0B0 0F1 0B1\nrank 1: 1F0 1I0 1W0 +1F1 1B1\n")
    validate(schedule)
    assert merge_backward(schedule) == schedule
    overlapping = load_text(HEAD + "rank 0: 0F0 0F1 0UNSHARD +0B0 0B1\nrank 1: 1F0 1B0 1F1 1B1\n")
    assert str(overlapping.without("UNSHARD").actions[0][2]) == "0B0"
    three = load_text(HEAD + "rank 0: 0F0 0F1 +0UNSHARD +0B0 0B1\nrank 1: 1F0 1B0 1F1 1B1\n")
    assert str(three.without("UNSHARD").actions[0][2]) == "+0B0"


def test_only_work_overlaps() -> None:
    with raises(InvalidSchedule, names=("rank 0", "action 1", "0SEND_F0>1")):
        load_text(HEAD + "rank 0: 0F0 0SEND_F0 +0F1\nrank 1: 1F0\n")


def test_retime_needs_no_more_memory() -> None:
    costs = CostModel(
        seconds={"F": [1.0, 3.0, 1.0, 2.0], "B": [2.0, 1.0, 4.0, 1.0]},
        stash_nbytes={"activation": [1.0, 1.0, 8.0, 1.0]},
    )
    for num_micro_batches in (4, 5, 8):
        schedule = build("1f1b", 4, num_micro_batches)
        anew = simulate(retime(schedule, costs), costs)
        assert anew.peak_nbytes.max() <= simulate(schedule, costs).peak_nbytes.max()


def test_wrong_values_are_named() -> None:
    for make, error, names in (
        (lambda: ModelCosts(4, "abc"), InvalidArgument, ("forward_s", "'abc'")),
        (lambda: ModelCosts("4", 1.0), InvalidArgument, ("1", "'4'")),
        (lambda: CostModel(seconds={"F": "one"}), InvalidArgument, ("seconds", "F", "'one'")),
        (lambda: validate(build("1f1b", 4, 4), limit_nbytes=[1.0, 2.0]), InvalidArgument, "4"),
        (lambda: validate(build("1f1b", 4, 4), limit_nbytes=float("nan")), InvalidArgument, "4"),
        (lambda: custom(5), InvalidArgument, "5"),
        (
            lambda: replace(build("1f1b", 2, 2), num_micro_batches=1.5),
            InvalidArgument,
            ("num_micro_batches", "1", "1.5"),
        ),
        (
            lambda: fill_bubbles(build("1f1b", 2, 2), [], CostModel(), margin=float("nan")),
            InvalidArgument,
            ("margin", "0", "nan"),
        ),
        (lambda: _one(Action("F", 0.9, 0)).columns, InvalidSchedule, ("stage", "0.9")),  # type: ignore[arg-type]
        (lambda: _one(Action("STEP", 0, width=3)).columns, InvalidSchedule, "0STEP-1"),
    ):
        with raises(error, names=names):
            make()  # type: ignore[no-untyped-call]
    assert CostModel(seconds={"F": np.int64(1)}).seconds_of("F", 2).tolist() == [1.0, 1.0]
    assert bottleneck_partition([5e-324 * 3] * 3, 2)[-1] == 3


def _one(action: Action) -> PipelineSchedule:
    return PipelineSchedule("mine", linear(1), 1, ((action,),))


def test_registered_kinds() -> None:
    register_kind(Kind("FREEAGAIN", "lets go twice", needs=(Need(("B",)),), frees=(Stash("activation"),)))
    rows = rows_of(build("1f1b", 2, 2))
    rows[0].append(Action("FREEAGAIN", 0, 0))
    with raises(StashLeak, names=("rank 0", "[0FREEAGAIN0]", "activation", "micro-batch 0")):
        validate(build("1f1b", 2, 2).with_actions(rows))
    need = Need(("F",), stages="inputs", match=("step", "pipe", "stage"), carries="activation")
    register_kind(Kind("WHOLE", "of a stage", scope="stage", needs=(need,)))
    rows = rows_of(build("1f1b", 2, 2))
    rows[1].append(Action("WHOLE", 1))
    with raises(InvalidArgument, names=("1WHOLE", "0F0")):
        lower_messages(build("1f1b", 2, 2).with_actions(rows))


def test_memory_decreases_when_an_action_ends() -> None:
    timeline = simulate(build("1f1b", 2, 2))
    held = dict(zip([str(each) for each in timeline.schedule.actions[0]], timeline.memory.after_nbytes, strict=False))
    assert held == {"0F0": 1, "0F1": 2, "0B0": 1, "0B1": 0}


def test_recomputing_needs_no_gradient() -> None:
    schedule = build("1f1b", 4, 4)
    before = simulate(recompute(lower_messages(schedule))).makespan_s
    assert before == simulate(lower_messages(recompute(schedule))).makespan_s
