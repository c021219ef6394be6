"""The event engine, compared with results by hand, and with fluid sharing solved by linear programming."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.errors import InvalidArgument, SimulationDeadlock
from hocket.sim import TaskGraph

from ..naming import raises


def test_a_task_begins_when_those_before_it_are_over() -> None:
    graph = TaskGraph()
    tasks = graph.add_tasks([1.0, 2.0, 4.0, 8.0])
    graph.add_order([tasks[2], tasks[2], tasks[3]], [tasks[0], tasks[1], tasks[0]])
    timeline = graph.simulate()
    assert timeline.begin_s.tolist() == [0, 0, 2, 1]
    assert timeline.end_s.tolist() == [1, 2, 6, 9]
    assert timeline.makespan_s == 9


def test_a_resource_holds_as_many_as_it_has_room_for_longest_waiting_first() -> None:
    graph = TaskGraph()
    first, late, early, short = graph.add_tasks([3.0, 1.0, 1.0, 2.0])
    graph.add_order(late, short)  # so it waits from 2 on, while `early` waits from the beginning
    (processor,) = graph.add_resources(1)
    graph.use([first, late, early], processor)
    timeline = graph.simulate()
    assert timeline.begin_s[[first, early, late]].tolist() == [0, 3, 4]
    assert timeline.busy_s.tolist() == [5]


def test_a_resource_in_order_waits_for_the_next_number() -> None:
    graph = TaskGraph()
    slow, first, second = graph.add_tasks([5.0, 1.0, 1.0])
    graph.add_order(first, slow)
    (port,) = graph.add_resources(1, in_order=True)
    graph.use([first, second], port)
    assert graph.simulate().begin_s[[first, second]].tolist() == [5, 6]


def test_capacity_lets_several_in() -> None:
    graph = TaskGraph()
    tasks = graph.add_tasks(np.ones(5))
    graph.use(tasks, graph.add_resources(1, capacity=2, in_order=True))
    assert graph.simulate().begin_s.tolist() == [0, 0, 1, 1, 2]


def test_flows_share_a_link_and_speed_up_when_others_end() -> None:
    graph = TaskGraph()
    short, long = graph.add_tasks(0.0, [100.0, 300.0])
    (link,) = graph.add_links(100.0)
    graph.cross([short, long], link)
    timeline = graph.simulate()
    assert timeline.end_s.tolist() == pytest.approx([2, 4])  # 50 B/s each for 2 s, then 100 B/s
    assert timeline.link_nbytes.tolist() == [400]


def test_latency_comes_before_the_bytes() -> None:
    graph = TaskGraph()
    early, late = graph.add_tasks([0.0, 1.0], [100.0, 100.0])
    graph.cross([early, late], graph.add_links(100.0))
    assert graph.simulate().end_s[[early, late]].tolist() == pytest.approx([1, 2])


def max_min_rates(routes: list[list[int]], bandwidth: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Water filling by its definition: raise all rates together; a flow stops when one of its links is full."""
    rates = np.zeros(len(routes))
    growing = np.ones(len(routes), bool)
    uses = np.zeros((len(bandwidth), len(routes)))
    for flow, route in enumerate(routes):
        uses[route, flow] = 1
    while growing.any():
        load = uses[:, growing].sum(axis=1)
        room = bandwidth - uses @ rates
        rates[growing] += (room[load > 0] / load[load > 0]).min()
        full = uses @ rates >= bandwidth * (1 - 1e-12)
        growing &= ~(uses[full].any(axis=0))
    return rates


@pytest.mark.parametrize("seed", range(20))
def test_rates_are_max_min_fair(seed: int) -> None:
    random = np.random.default_rng(seed)
    bandwidth = random.integers(1, 20, 6).astype(float)
    routes = [sorted(random.choice(6, random.integers(1, 4), replace=False).tolist()) for _ in range(9)]
    rates = max_min_rates(routes, bandwidth)
    # Sizes are proportional to the rates: if the rates are right, all flows end together at 7 s.
    graph = TaskGraph()
    tasks = graph.add_tasks(0.0, 7.0 * rates)
    links = graph.add_links(bandwidth)
    for task, route in zip(tasks, routes, strict=True):
        graph.cross(task, links[route])
    assert graph.simulate().end_s == pytest.approx(np.full(9, 7.0))


def test_tasks_that_wait_for_each_other_are_named() -> None:
    graph = TaskGraph()
    tasks = graph.add_tasks(np.ones(3))
    graph.add_order([tasks[1], tasks[2]], [tasks[2], tasks[1]])
    with raises(SimulationDeadlock, names=("2", "3", "task 1"), tasks=(1, 2)):
        graph.simulate()


def test_flows_that_end_almost_together_late_on_the_clock_all_end() -> None:
    graph = TaskGraph()
    links = graph.add_links(np.full(400, 1e9))
    first = graph.add_tasks(1000.0)  # from here on the last digit of a time is a tenth of a picosecond
    nbytes = 1 + 0.01 * np.random.default_rng(1).random(400)  # these end within ten picoseconds
    tasks = graph.add_tasks(np.zeros(400), nbytes)
    graph.add_order(tasks, np.full(400, first))
    graph.cross(tasks, links)
    assert graph.simulate().end_s[tasks] == pytest.approx(1000 + nbytes * 1e-9, rel=1e-15)


def test_wrong_arguments_are_named() -> None:
    graph = TaskGraph()
    with raises(InvalidArgument, names=("duration_s", "0", "-1.0")):
        graph.add_tasks([-1.0])
    with raises(InvalidArgument, names=("nbytes", "0", "inf")):
        graph.add_tasks(0.0, float("inf"))
    with raises(InvalidArgument, names=("bandwidth", "0")):
        graph.add_links(0.0)
    with raises(InvalidArgument, names=("capacity", "1", "0")):
        graph.add_resources(1, capacity=0)
    task = graph.add_tasks(1.0)
    graph.use(task, 5)
    with raises(InvalidArgument):
        graph.simulate()


def test_nothing_takes_no_time() -> None:
    assert TaskGraph().simulate().makespan_s == 0
