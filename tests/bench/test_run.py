"""Benchmarks on real ranks: all of OMB-Py's by memory and by objects, over four libraries."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hocket.bench import run
from hocket.bench.buffers.registry import find_kind
from hocket.bench.choice import choose_points
from hocket.bench.drivers.base import Driver
from hocket.bench.families import nonblocking
from hocket.bench.measuring import Request
from hocket.bench.point import Point
from hocket.bench.registry import Setting, find_benchmark
from hocket.bench.run import Run, run_points
from hocket.bench.targets import parse_targets
from hocket.errors import LaunchError, WrongResult
from hocket.measure import StopRule

from ..naming import raises
from ..tier import full, sample
from .test_choice import OMB_PY

pytestmark = pytest.mark.timeout(240)
BRIEF = StopRule(precision=0.9, min_samples=6, max_samples=6, min_sample_s=2e-4, time_limit_s=1.0)


def measured(names, libraries, num_ranks=2, **options) -> Run:
    targets = parse_targets(libraries)
    return run_points(choose_points(names, targets, **options), targets, num_ranks, BRIEF)


@pytest.mark.parametrize(
    "libraries", sample(["shm,gloo", "mpi:mpich", "mpi:openmpi", "mpi4py:mpich", "mpi4py:openmpi"], 1)
)
def test_all_of_omb_py_by_memory_and_by_objects(libraries):
    ran = measured(OMB_PY, libraries, apis=["buffer", "pickle"], sizes=[8, 4096])
    assert not [each for each in ran.warnings if "left out" in each]
    num_ways = 2 * len(libraries.split(","))
    assert len(ran.results) == num_ways * (2 * (len(OMB_PY) - 1) + 1)  # two sizes, but for the barrier
    assert all(each.value > 0 and len(each.samples) >= 1 for each in ran.results)


@pytest.mark.parametrize("reduction", ["prod", "min", "max"])
@pytest.mark.parametrize("buffer", ["numpy", "torch"])
def test_reductions_by_memory_and_by_objects(reduction, buffer):
    options = {"apis": ["buffer", "pickle"], "buffers": [buffer], "reduction": reduction, "sizes": [64]}
    names = ["all_reduce", "reduce", "reduce_scatter"]
    ran = measured(names, "shm", **options)
    assert len(ran.results) == 2 * len(names) and not any("left out" in each for each in ran.warnings)


@full
def test_torch_beside_hocket_over_gloo():
    ran = measured(["all_reduce", "latency"], "gloo,torch:gloo", buffers=["torch"], sizes=[1024])
    assert {each.point.target for each in ran.results} == {"gloo", "torch:gloo"} and len(ran.results) == 4


def test_what_a_library_has_not_is_left_out_and_said():
    ran = measured(["all_reduce"], "shm", apis=["buffer", "pickle5"], sizes=[8])
    assert len(ran.results) == 1
    assert any("left out all_reduce 8 B shm numpy pickle5" in each for each in ran.warnings)


def test_a_corrupted_byte_is_found():
    with raises(LaunchError, names=("WrongResult", "shm!corrupt", "numpy")):
        measured(["all_gather"], "shm!corrupt", sizes=[64])


def test_a_rank_that_is_late_makes_everything_late():
    ran = measured(["broadcast"], "shm,shm!delay=2000us", sizes=[64])
    _, late = ran.results
    assert late.value > 2000  # the mean over ranks would be half of that; how fast the other is, is the machine's


def test_more_ranks_than_cpus_are_said():
    import os

    num_ranks = len(os.sched_getaffinity(0)) + 1
    ran = measured(["barrier"], "shm", num_ranks)
    assert any(f"{num_ranks} ranks share" in each for each in ran.warnings)


def test_parts_without_elements():
    ran = measured(
        ["reduce_scatter", "ireduce_scatter", "all_gather", "scatter", "scan"], "shm,mpi4py:mpich", 3, sizes=[0, 4, 8]
    )
    assert len(ran.results) == 2 * 5 * 3 and not any("left out" in each for each in ran.warnings)


_IN_PLACE_BY_NATURE = {"all_reduce", "reduce", "scan"}
_OUT_OF_PLACE_BY_NATURE = {"all_gather", "all_to_all", "gather", "reduce_scatter", "scatter"}


@pytest.mark.parametrize(
    ("library", "others"),
    [
        ("shm", {"all_gather", "gather", "reduce_scatter", "scatter"}),
        ("mpi4py:mpich", _IN_PLACE_BY_NATURE | _OUT_OF_PLACE_BY_NATURE),
    ],
)
def test_places(library, others):
    """Each collective in both places: its result is looked at, as always, and what a library has not is said."""
    ops = sorted(_IN_PLACE_BY_NATURE | _OUT_OF_PLACE_BY_NATURE)
    ran = measured(ops, library, 3, sizes=[24], places=["in", "out"])
    found = {(each.point.benchmark, each.point.place) for each in ran.results}
    natural = {(op, "in") for op in _IN_PLACE_BY_NATURE} | {(op, "out") for op in _OUT_OF_PLACE_BY_NATURE}
    assert found == natural | {(op, place) for op in others for place in ("in", "out")}
    assert sum("left out" in each for each in ran.warnings) == 2 * len(ops) - len(found)


def test_the_beginning_of_a_nonblocking_operation_is_timed_in_the_same_rounds():
    (found,) = measured(["iall_reduce"], "shm", sizes=[1 << 16]).results
    assert len(found.parts["begin"]) == len(found.samples) and min(found.parts["begin"]) > 0


def test_the_time_of_the_beginning_is_that_alone(monkeypatch):
    now = [0.0]

    def taking(seconds):
        def advance(*_):
            now[0] += seconds

        return advance

    overlapped = object.__new__(nonblocking.Overlapped)
    overlapped._begin, overlapped._multiply, overlapped._wait = taking(3.0), taking(11.0), taking(7.0)
    overlapped._num_products = 1
    monkeypatch.setattr(nonblocking, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert overlapped._time_begin(4) == 4 * 3.0
    assert now[0] == 4 * (3.0 + 11.0 + 7.0)


@full
def test_what_a_library_refuses_leaves_the_others_be():
    ran = measured(["all_reduce"], "shm,torch:gloo,mpi4py:mpich", dtype="bfloat16", buffers=["torch"], sizes=[8])
    left_out = [each for each in ran.warnings if "left out" in each]
    assert {each.point.target for each in ran.results} >= {"shm"}
    assert len(ran.results) + len(left_out) == 3
    assert any("mpi4py:mpich" in each for each in left_out)


def test_large_objects_that_are_begun():
    ran = measured(["bandwidth"], "mpi4py:mpich,shm", apis=["pickle"], sizes=[256 << 10], window=2)
    assert len(ran.results) == 2


def test_messages_that_do_not_come_are_found():
    """Another library has filled the same arrays before with what is wanted."""

    class Silent(Driver):
        name, rank, size = "silent", 0, 2

        def binders(self, api):
            return dict.fromkeys(("send", "recv", "isend", "irecv"), lambda *arguments: lambda: None)

        def barrier(self):
            return None

        def wait(self, requests):
            return None

        def share(self, obj):
            return [obj]

    for name in ("latency", "bandwidth", "bidirectional_bandwidth"):
        setting = Setting(Point(name, "silent", 8), Silent(), find_kind("numpy"))
        prepared = find_benchmark(name).make(setting)
        with raises(WrongResult, names=("silent", "numpy")):
            prepared.check(0)


def test_launches_keep_the_time_of_all_of_them(monkeypatch):
    now, limits = 0.0, []

    def measure_jobs(request, on_round, on_results):
        nonlocal now
        limits.append(request.rule.time_limit_s)
        now += 2.0 + request.rule.time_limit_s  # to start them, and to measure
        on_round(0, 1, "b", 1.0)

    told = []
    monkeypatch.setattr(run.time, "monotonic", lambda: now)
    monkeypatch.setattr(run, "_measure_jobs", measure_jobs)
    monkeypatch.setattr(run, "join", list)
    request = Request([], [], 2, replace(BRIEF, time_limit_s=40.0), num_launches=4)
    run._measure_launches(request, lambda *state: told.append(state), None)
    assert now <= 40.0 + 1e-9 and min(limits) > 5.0
    assert [state[3] for state in told] == pytest.approx([31.0, 20.0 - 0.667, 10.0 - 0.333, 1.0], abs=1.5)
