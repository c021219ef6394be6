"""Hierarchies of hosts and domains: their results, the traffic between hosts, and any root."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.collectives.proof import verify
from hocket.collectives.registry import find_algorithm
from hocket.collectives.schedule import COLUMNS, Schedule, from_columns
from hocket.collectives.serialise import from_json, to_json
from hocket.collectives.simulate import simulate
from hocket.collectives.transform import rotated
from hocket.errors import InvalidArgument, InvalidSchedule
from hocket.sim import Hosts, Link

from ..naming import raises

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")
LEVELS = [(4, 2), (6, 3), (12, 4), (8, 8), (5, 1), (1, 1), (18, 6)]


def crossing(schedule: Schedule, nbytes: int, ranks_per_host: int) -> np.ndarray:
    """Return the bytes that every host sends to other hosts."""
    sizes = nbytes / (schedule.num_ranks if schedule.collective == "all_to_all" else schedule.num_blocks)
    sources, destinations = schedule.sources // ranks_per_host, schedule.destinations // ranks_per_host
    counts = np.bincount(sources[sources != destinations], minlength=schedule.num_ranks // ranks_per_host)
    return counts * sizes


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("num_ranks", "ranks_per_host"), LEVELS)
def test_traffic_between_hosts_is_minimal(collective: str, num_ranks: int, ranks_per_host: int) -> None:
    """The lower bound: a host sends the data that other hosts need exactly once."""
    algorithm = find_algorithm(collective, "hierarchical")
    schedule = algorithm.schedule(num_ranks, ranks_per_host=ranks_per_host)
    verify(schedule)
    if collective in ("all_reduce", "all_gather", "reduce_scatter"):
        verify(algorithm.schedule(num_ranks, ranks_per_host=ranks_per_host, num_segments=3))
    num_hosts, nbytes = num_ranks // ranks_per_host, 5040 * num_ranks
    others = num_hosts - 1
    sent = crossing(schedule, nbytes, ranks_per_host)
    bound = {
        "all_reduce": 2 * nbytes * others / num_hosts,  # Patarasuk and Yuan 2009, for hosts instead of ranks
        "all_gather": nbytes / num_hosts * others,
        "reduce_scatter": nbytes / num_hosts * others,
        "all_to_all": ranks_per_host * nbytes / num_hosts * others,
    }
    if collective in bound:
        assert sent == pytest.approx(np.full(num_hosts, bound[collective]))
    else:  # all hosts together: every other host receives the array once, or sends its part
        assert sent.sum() == pytest.approx(others * nbytes)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_domains_are_a_separate_level(collective: str) -> None:
    algorithm = find_algorithm(collective, "hierarchical")
    for num_ranks, per_host, per_domain in ((24, 12, 4), (8, 4, 2), (16, 8, 8), (27, 9, 3)):
        schedule = algorithm.schedule(num_ranks, ranks_per_host=per_host, ranks_per_domain=per_domain)
        verify(schedule)
        flat = algorithm.schedule(num_ranks, ranks_per_host=per_host)
        assert crossing(schedule, 5040, per_host) == pytest.approx(crossing(flat, 5040, per_host))
        between = crossing(schedule, 5040, per_domain).sum() - crossing(schedule, 5040, per_host).sum()
        assert per_domain == per_host or between < crossing(flat, 5040, per_domain).sum()


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("root", range(6))
def test_hosts_stay_together_for_any_root(collective: str, root: int) -> None:
    schedule = find_algorithm(collective, "hierarchical").schedule(6, ranks_per_host=3, num_blocks=2)
    assert schedule.group_size == 3
    for_root = rotated(schedule, root)
    assert crossing(for_root, 5040, 3).sum() == pytest.approx(5040)
    assert [schedule.place_of(schedule.rank_at(place, root), root) for place in range(6)] == list(range(6))
    assert schedule.rank_at(0, root) == root


def test_segments_let_levels_overlap() -> None:
    """The slower level takes its full time; only one segment of the faster level is not hidden."""
    hosts = Hosts(Link(0.0, 3e-10), Link(0.0, 1e-9), 4)
    algorithm = find_algorithm("all_gather", "hierarchical")
    nbytes = 16 << 20
    across_s, within_s = nbytes * 3 / 4 * 1e-9, nbytes * 3 / 4 * 3e-10
    for num_segments in (1, 4, 16):
        schedule = algorithm.schedule(16, ranks_per_host=4, num_segments=num_segments)
        seconds = simulate(schedule, nbytes, hosts).seconds
        assert seconds == pytest.approx(across_s + within_s / num_segments, rel=0.1)


def test_a_hierarchy_in_a_file() -> None:
    schedule = find_algorithm("broadcast", "hierarchical").schedule(4, ranks_per_host=2)
    assert from_json(to_json(schedule)).group_size == 2
    without = to_json(schedule).replace(' "group_size": 2,\n', "")
    assert without != to_json(schedule)
    assert from_json(without).group_size == 4


def test_invalid_hierarchies_are_refused() -> None:
    all_reduce = find_algorithm("all_reduce", "hierarchical")
    with raises(InvalidArgument, names=("6", "4")):
        all_reduce.schedule(6, ranks_per_host=4)
    with raises(InvalidArgument, names=("4", "3")):
        all_reduce.schedule(8, ranks_per_host=4, ranks_per_domain=3)
    with raises(InvalidArgument, names=("all_gather", "'rabenseifner'", "recursive_doubling", "ring")):
        find_algorithm("all_gather", "hierarchical").schedule(8, ranks_per_host=2, outer="rabenseifner")
    columns: dict[str, list[int]] = {name: [] for name in COLUMNS}
    with raises(InvalidSchedule, names=("4", "3")):
        from_columns("broadcast", 4, 1, 1, columns, group_size=3)
