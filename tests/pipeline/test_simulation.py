"""The simulation agrees with a second, small simulator and with results computed by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from hocket.errors import InvalidArgument, MissingAction
from hocket.pipeline import CostModel, PipelineSchedule, add_gradient_sync, build, concatenate, lower_messages, simulate
from hocket.pipeline.action import Action
from hocket.pipeline.formats.text import load
from hocket.pipeline.kind import Kind, Need, register_kind
from hocket.sim import Hosts, Link

from ..naming import raises
from .tables import all_schedules, random_legal, rows_of

pytestmark = pytest.mark.timeout(120)

HEAD = "hocket pipeline schedule, version 1\nmicro-batches: 1\npipe 0: 0 1 2\n"


def longest_path(schedule: PipelineSchedule, seconds: dict[str, float], message_s: float) -> float:
    """Compute the makespan by recursion over the dependencies of a chain of stages and the order of every rank."""
    where: dict[tuple[str, int, int], tuple[int, int]] = {}
    for rank, actions in enumerate(schedule.actions):
        for index, action in enumerate(actions):
            for micro_batch in range(action.micro_batch, action.micro_batch + action.width):
                where["F" if action.kind == "F" else action.kind, action.stage, micro_batch] = (rank, index)
    ends: dict[tuple[int, int], float] = {}

    def end(rank: int, index: int) -> float:
        if (rank, index) not in ends:
            action = schedule.actions[rank][index]
            begin = end(rank, index - 1) if index else 0.0
            last = schedule.num_stages - 1
            for number in range(action.micro_batch, action.micro_batch + action.width):
                needed: list[tuple[str, int]] = []
                if action.kind == "F" and action.stage:
                    needed.append(("F", action.stage - 1))
                if action.kind in ("B", "I"):
                    needed.append(("F", action.stage))
                    if action.stage < last:
                        needed += [(kind, action.stage + 1) for kind in "BI"]
                if action.kind == "W":
                    needed.append(("I", action.stage))
                for kind, stage in needed:
                    place = where.get((kind, stage, number))
                    if place is not None:
                        begin = max(begin, end(*place) + (message_s if place[0] != rank else 0.0))
            ends[rank, index] = begin + seconds[action.kind] * action.width
        return ends[rank, index]

    for rank, actions in enumerate(schedule.actions):
        for index in range(len(actions)):
            end(rank, index)
    return max(ends.values())


def test_another_simulator_agrees() -> None:
    draw = random.Random("simulate")
    for schedule in all_schedules():
        for table in (random_legal(schedule, draw), random_legal(schedule, draw)):
            seconds = {kind: draw.choice([0.5, 1.0, 1.75, 3.0]) for kind in "FBIW"}
            for message_s in (0.0, 0.3):
                # Messages of 0 bytes occupy ports for no time.
                costs = CostModel(seconds=seconds, fabric=_Delay(message_s))
                expected = longest_path(table, seconds, message_s)
                assert simulate(table, costs).makespan_s == pytest.approx(expected, rel=1e-12)


class _Delay(Hosts):
    """Messages that take time but share no ports."""

    def __init__(self, seconds: float) -> None:
        super().__init__(Link(seconds, 0.0), Link(seconds, 0.0), 1 << 20)

    def connections(self, sources, destinations):  # type: ignore[no-untyped-def]
        return np.full(len(sources), 7, np.int32)  # connections 0 and 1 share ports, this one does not


def test_bubbles_by_hand() -> None:
    """Three ranks, one micro-batch, F = 1 and B = 2: each rank is busy for 3 of 9 s."""
    timeline = simulate(load(HEAD + "rank 0: 0F0 0B0\nrank 1: 1F0 1B0\nrank 2: 2F0 2B0\n"))
    assert timeline.makespan_s == 9
    assert timeline.busy_s.tolist() == [3, 3, 3]
    assert timeline.span_s.tolist() == [9, 6, 3]
    assert timeline.bubble("sync") == pytest.approx(2 / 3)
    assert timeline.bubble("span") == pytest.approx(2 / 3)
    assert [(gap.rank, gap.begin_s, gap.end_s, gap.place) for gap in timeline.gaps()] == [
        (0, 1, 7, 1), (1, 0, 1, 0), (1, 2, 5, 1), (1, 7, 9, 2), (2, 0, 2, 0), (2, 5, 9, 2),
    ]  # fmt: skip
    assert [str(timeline.schedule.action(row)) for row in timeline.critical_path()] == [
        "0F0", "1F0", "2F0", "2B0", "1B0", "0B0",
    ]  # fmt: skip
    with raises(InvalidArgument, names=("sync", "span", "'other'")):
        timeline.bubble("other")  # type: ignore[arg-type]


def test_messages_take_time_and_ports() -> None:
    """A message takes α + nβ; a rank sends one at a time; traffic is counted by edge."""
    schedule = build("1f1b", 3, 4)
    costs = CostModel(fabric=Link(0.25, 0.125), message_nbytes=[2.0, 4.0, 99.0])
    timeline = simulate(schedule, costs)
    first = simulate(build("1f1b", 3, 1), costs)
    assert first.makespan_s == 9 + 2 * (0.25 + 0.25) + 2 * (0.25 + 0.5)
    traffic = {(each.from_stage, each.to_stage): (each.num_messages, each.nbytes) for each in timeline.traffic()}
    assert traffic == {(0, 1): (4, 8.0), (1, 0): (4, 8.0), (1, 2): (4, 16.0), (2, 1): (4, 16.0)}
    assert (timeline.message_end_s - timeline.message_begin_s).min() == 0.5
    slow = simulate(build("gpipe", 2, 4), CostModel(seconds={"F": 1.0, "B": 1.0}, fabric=Link(3.0, 0.0)))
    assert (
        slow.makespan_s == 1 + 4 * 3 + 1 + 1 + 4 * 3 + 1
    )  # the sending port of each rank is the bottleneck, in both directions


def test_hosts_share_their_uplink() -> None:
    costs = CostModel(fabric=Hosts(Link(0.0, 0.0), Link(0.0, 1.0), 2), message_nbytes=1.0)
    assert (
        simulate(build("1f1b", 4, 1), costs).makespan_s == 12 + 2
    )  # only messages between stages 1 and 2 leave a host, one per direction


def test_skip_connections() -> None:
    """A DAG: stage 2 takes the outputs of stages 0 and 1, and stage 0 receives gradients of both others."""
    table = "rank 0: 0F0 0B0\nrank 1: 1F0 1B0\nrank 2: 2F0 2B0\nedges: 0>1 1>2 0>2\n"
    costs = CostModel(seconds={"F": 1.0, "B": 2.0}, fabric=Link(10.0, 0.0))
    timeline = simulate(load(HEAD + table), costs)
    assert {(each.from_stage, each.to_stage) for each in timeline.traffic()} == {
        (0, 1), (1, 2), (0, 2), (1, 0), (2, 1), (2, 0),
    }  # fmt: skip
    apart = simulate(load(HEAD + table.replace("0>1 1>2 0>2", "0>2 1>2")), costs)
    # Stages 0 and 1 are independent; rank 2 receives their messages, and sends its own, one at a time.
    assert apart.makespan_s == 1 + 20 + 1 + 2 + 20 + 2
    lowered = lower_messages(timeline.schedule)
    assert Action("SEND_F", 0, 0, peer=2) in lowered.actions[0]
    assert simulate(lowered, costs).makespan_s == timeline.makespan_s


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "chimera", "dualpipe"])
def test_named_messages_take_as_long(name: str) -> None:
    """With unlimited tagged buffers, explicit messages do not change the time of a table."""
    schedule = build(name, 4, 8)
    for link in (None, Link(0.125, 0.0)):
        costs = CostModel(fabric=link)
        assert simulate(lower_messages(schedule), costs).makespan_s == simulate(schedule, costs).makespan_s


def test_few_buffers_take_longer() -> None:
    schedule = lower_messages(build("gpipe", 4, 8))
    costs = CostModel(seconds={"F": 1.0, "B": 3.0}, fabric=Link(0.5, 0.0))
    times = [simulate(schedule, costs, buffering=each).makespan_s for each in ("tagged", "tagged:2", "rendezvous")]
    assert times == sorted(times)
    assert times[0] < times[-1]
    with raises(InvalidArgument, names=("fifo:1", "lower_messages")):
        simulate(build("gpipe", 4, 8), buffering="fifo:1")


def test_sums_of_gradients() -> None:
    """A sum takes 2 log2(r) α + 2 (r - 1)/r nβ after the last gradient of all copies; a rank runs one at a time."""
    costs = CostModel(fabric=Link(0.5, 0.25), gradient_nbytes=8.0)
    schedule = build("chimera", 2, 2)
    bare = simulate(schedule, costs).makespan_s
    lazy = simulate(add_gradient_sync(schedule, "lazy", costs), costs)
    assert lazy.makespan_s == bare + 2 * (2 * 0.5 + 2 * 0.5 * 8 * 0.25)
    eager = simulate(add_gradient_sync(schedule, "eager", costs), costs)
    assert eager.makespan_s < lazy.makespan_s
    replicas = replace(costs, num_replicas=4)
    assert costs.all_reduce_s(8.0, [0, 1], 2) == 3.0
    assert replicas.all_reduce_s(8.0, [0, 1], 2) == 2 * 3 * 0.5 + 2 * 7 / 8 * 2.0
    assert replicas.all_reduce_s(8.0, [0], 1) == 2 * 2 * 0.5 + 2 * 3 / 4 * 2.0


def test_steps_follow_each_other() -> None:
    schedule = add_gradient_sync(build("1f1b", 4, 8), with_step=True)
    three = simulate(concatenate(schedule, 3))
    one = simulate(schedule).makespan_s
    assert three.makespan_s == 3 * one  # rank 0 is the first to start and the last to end
    assert len(three.schedule) == 3 * len(schedule)


def test_background_work() -> None:
    """A kind with a separate resource: the rank starts the action and continues."""
    register_kind(
        Kind("SAVE", "write a slice", scope="stage", needs=(Need(("F",), match=("step", "pipe", "stage")),),
             cost="SAVE", resource="disk")
    )  # fmt: skip
    rows = rows_of(build("gpipe", 2, 2))
    rows[0].insert(2, Action("SAVE", 0))
    schedule = build("gpipe", 2, 2).with_actions(rows)
    costs = CostModel(seconds={"F": 1.0, "B": 2.0, "SAVE": 3.0})
    timeline = simulate(schedule, costs)
    assert timeline.makespan_s == simulate(build("gpipe", 2, 2)).makespan_s
    row = int(schedule.columns.rows("SAVE")[0])
    assert (timeline.begin_s[row], timeline.end_s[row]) == (2.0, 5.0)
    assert timeline.busy_s.tolist() == [6, 6]
    assert simulate(schedule, replace(costs, seconds={"F": 1.0, "B": 2.0, "SAVE": 50.0})).makespan_s == 52


def test_costs_by_stage() -> None:
    costs = CostModel(seconds={"F": [1.0, 2.0], "B": [2.0, 4.0]})
    assert simulate(build("gpipe", 2, 3), costs).makespan_s == 1 + 3 * 2 + 3 * 4 + 2
    with raises(InvalidArgument, names=("F", "3", "2")):
        simulate(build("gpipe", 3, 3), costs)
    with raises(InvalidArgument, names=("F", "0", "-1.0")):
        CostModel(seconds={"F": -1.0})
    with raises(InvalidArgument, names=("num_replicas", "1", "0")):
        CostModel(num_replicas=0)
    assert CostModel(seconds={"I": 1.0, "W": 0.5}).seconds_of("B", 2).tolist() == [1.5, 1.5]


def test_missing_dependencies_are_refused() -> None:
    with raises(MissingAction, names=("rank 1", "action 1", "1B0", "2B0", "2I0")):
        simulate(load(HEAD + "rank 0: 0F0 0B0\nrank 1: 1F0 1B0\nrank 2: 2F0\n"))


@pytest.mark.parametrize("num_pairs", [1, 2])
def test_large_tables(num_pairs: int) -> None:
    schedule = build("chimera", 64, 1024, num_pairs=num_pairs)
    assert len(schedule) == 64 * 1024 * 2
    slots = simulate(schedule, CostModel(seconds={"F": 1.0, "B": 1.0}))
    assert slots.makespan_s == 2 * 64 * 16 + 64 / num_pairs - 2
