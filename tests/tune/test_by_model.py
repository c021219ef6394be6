"""Schedules that the model chooses for libraries that have no collectives of their own."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from hocket.collectives import verify
from hocket.collectives.semantics import SEMANTICS
from hocket.collectives.source import parse_algorithm
from hocket.comm.policy import LARGEST_NBYTES, Group, Policy, RankedCarrier, range_of
from hocket.session.schedules import LazySchedules
from hocket.sim import Link
from hocket.tune import Table, TablePolicy
from hocket.tune.by_model import best_candidate, best_schedules
from hocket.tune.contest import predict_all
from hocket.tune.fit import Fit
from hocket.tune.model import ModelPolicy, link_of

from .tables import MACHINE, row

COUNTED = {"all_gatherv": "all_gather", "reduce_scatterv": "reduce_scatter", "all_to_allv": "all_to_all"}
MODEL = ModelPolicy()
GROUPS = [Group(1, ["ucx"]), Group(2, ["ucx"]), Group(5, ["ucx"]), Group(8, ["ucx"], 2, 4), Group(300, ["ucx"], 2, 150)]


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("op", [*SEMANTICS, *COUNTED])
def test_there_is_one_for_every_size(op: str, group: Group) -> None:
    ranges = best_schedules(op, group, "ucx", MODEL)
    assert ranges[-1].most_nbytes == LARGEST_NBYTES
    assert all(each.most_nbytes < following.most_nbytes for each, following in pairwise(ranges))
    for each in ranges:
        (name,) = each.ranking
        algorithm, parameters = parse_algorithm(COUNTED.get(op, op), name)
        schedule = algorithm.schedule(group.size, **parameters)
        if group.size < 300:
            verify(schedule)
        assert op != "all_to_allv" or schedule.num_slots == 2 * group.size


@pytest.mark.parametrize("op", ["gather", "scatter", "gatherv", "scatterv", "send", "recv"])
def test_there_is_none_of_what_has_no_schedules(op: str) -> None:
    assert not best_schedules(op, GROUPS[1], "ucx", MODEL)
    assert best_candidate(op, 1000, GROUPS[1], "ucx", MODEL) is None
    bare = RankedCarrier("ucx", None, "in order")
    assert LazySchedules().complete_candidates([bare], op, 1000, GROUPS[1], MODEL) == [bare]


@pytest.mark.parametrize("nbytes", [16, 4096, 1 << 20, 16 << 20])
@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "reduce"])
def test_nothing_is_much_faster_by_the_formulas(op: str, nbytes: int) -> None:
    group = Group(6, ["ucx"])
    chosen = best_candidate(op, nbytes, group, "ucx", MODEL)
    assert chosen is not None and chosen.seconds is not None and chosen.source == "modelled"
    best_s = min(seconds for _, seconds in predict_all(op, nbytes, group, link_of("ucx", 1)))
    assert best_s <= chosen.seconds * (1 + 1e-9) <= best_s * 1.1 + 1e-12
    assert chosen.algorithm == range_of(best_schedules(op, group, "ucx", MODEL), nbytes).ranking[0]


def test_sizes_differ_between_ranks() -> None:
    """All members choose alike where they see different sizes, and by the mean block where they see all of them."""
    group = Group(4, ["ucx"])
    assert len(best_schedules("all_to_allv", group, "ucx", MODEL)) == 1
    one, counted = (best_schedules(op, group, "ucx", MODEL) for op in ("all_gather", "all_gatherv"))
    assert [each.ranking for each in one] == [each.ranking for each in counted]
    assert [4 * each.most_nbytes + 3 for each in one[:-1]] == [each.most_nbytes for each in counted[:-1]]


def test_a_link_that_was_measured_counts() -> None:
    machine = replace(MACHINE, backends={"shm": "shared memory", "ucx": "UCX"})
    table = Table(machine, (row("send", "ucx", 16, 1e-5),), fits=(Fit("ucx", 1e-9, 1e-8, 0.0, 0.0),))
    measured: Policy = TablePolicy(table)
    group = Group(8, ["shm", "ucx"])
    assert measured.fitted_link(group, "ucx") == Link(1e-9, 1e-8)
    assert measured.fitted_link(group, "shm") is None and MODEL.fitted_link(group, "ucx") is None
    assert measured.fitted_link(replace(group, num_hosts=2), "ucx") is None  # another link
    for policy, link in ((measured, Link(1e-9, 1e-8)), (MODEL, link_of("ucx", 1))):
        candidate = best_candidate("all_reduce", 65536, group, "ucx", policy)
        assert candidate is not None and candidate.seconds is not None
        best_s = min(seconds for _, seconds in predict_all("all_reduce", 65536, group, link))
        assert candidate.seconds <= best_s * 1.1 + 1e-12
