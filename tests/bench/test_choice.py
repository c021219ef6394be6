"""Points from lists, and what is said of lists that cannot be measured."""

import pytest

from hocket.bench.choice import choose_points, powers_of_two
from hocket.bench.registry import benchmarks, find_benchmark
from hocket.bench.run import check_points
from hocket.bench.targets import parse_targets
from hocket.errors import BackendUnavailable, InvalidArgument

from ..naming import raises

pytestmark = pytest.mark.timeout(60)
OMB_PY = (
    "latency", "bw", "bibw", "multi_lat", "allgather", "allgatherv", "allreduce", "alltoall", "alltoallv", "barrier",
    "bcast", "gather", "gatherv", "reduce_scatter", "reduce", "scatter", "scatterv",
)  # fmt: skip


@pytest.mark.parametrize("name", OMB_PY)
def test_omb_py_names_are_understood(name):
    found = {find_benchmark(each).name for each in (name, f"osu_{name}", f"coll/osu_{name}")}
    assert len(found) == 1 and found <= set(benchmarks())


def test_groups_of_benchmarks():
    shm = parse_targets("shm")
    assert {each.benchmark for each in choose_points(["omb-py"], shm, sizes=[8])} == {
        find_benchmark(each).name for each in OMB_PY
    }
    families = {each.name: each.family for each in benchmarks().values()}
    of_pairs = [each.benchmark for each in choose_points(["point-to-point", "latency"], shm, sizes=[8])]
    assert sorted(of_pairs) == sorted(name for name, family in families.items() if family == "point to point")
    assert {"latency", "bandwidth", "bidirectional_bandwidth", "multi_latency"} < set(of_pairs)
    everything = {each.benchmark for each in choose_points(["all"], shm, sizes=[8])}
    assert everything == {name for name, family in families.items() if family != families["startup"]}


def test_sizes_are_taken_as_they_are():
    shm = parse_targets("shm")
    assert [each.nbytes for each in choose_points(["latency"], shm, sizes=[0, 7, 1000])] == [0, 7, 1000]
    assert powers_of_two(3, 20) == [3, 4, 8, 16, 20]
    assert powers_of_two(0, 4) == [0, 1, 2, 4] and powers_of_two(8, 8) == [8]
    assert [each.nbytes for each in choose_points(["allreduce"], shm, most=16)] == [4, 8, 16]


def test_all_combinations():
    points = choose_points(["bcast", "reduce"], parse_targets("shm,gloo"), buffers=["numpy", "torch"], sizes=[64])
    assert len(points) == len({each.key for each in points}) == 8
    assert {(each.benchmark, each.dtype) for each in points} == {("broadcast", "uint8"), ("reduce", "float32")}


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"names": ["allreduc"]}, ("'allreduc'", "latency", "all_reduce")),
        ({"buffers": ["numpi"]}, ("'numpi'", "bytearray", "cupy", "numba", "numpy", "pycuda", "torch")),
        ({"apis": ["pickel"]}, ("'pickel'", "buffer", "pickle", "pickle5", "dlpack")),
        ({"reduction": "avg"}, ("'avg'", "sum", "prod", "min", "max")),
        ({"sizes": [6]}, ("6 bytes", "float32", "4")),
        ({"dtype": "float31"}, ("'float31'", "numpy", "float32")),
        ({"buffers": ["bytearray"], "dtype": "float32"}, ("float32", "numpy", "torch")),
        ({"least": 64, "most": 8}, ("64", "8")),
        (
            {"buffers": ["bytearray"], "names": ["bcast"], "apis": ["dlpack"]},
            ("bytearray", "DLPack"),
        ),
        ({"buffers": ["torch"], "symmetric": True}, ("numpy", "torch")),
        ({"apis": ["pickle"], "symmetric": True}, ("buffer", "dlpack", "objects")),
        ({"names": ["bw"], "sizes": [0]}, ("bandwidth", "0 bytes")),
        ({"apis": ["pickle5"]}, ("shm", "pickle5", "--api pickle")),
        ({"names": ["iallreduce"], "apis": ["pickle"]}, ("iall_reduce", "pickle")),
        ({"places": ["inside"]}, ("'inside'", "in", "out")),
        ({"names": ["bcast"], "places": ["in"]}, ("broadcast",)),
        ({"apis": ["pickle"], "places": ["in"]}, ("pickle",)),
    ],
)
def test_what_there_is_not(options, wrong):
    names = options.pop("names", ["allreduce"])
    with raises(InvalidArgument, names=wrong):
        choose_points(names, parse_targets("shm"), **options)


def test_memory_that_ranks_share_is_hockets():
    with raises(InvalidArgument, names=("mpi4py:mpich", "shm")):
        choose_points(["bcast"], parse_targets("mpi4py:mpich"), symmetric=True)
    assert len(choose_points(["bcast"], parse_targets("mpi4py:mpich,shm"), symmetric=True, sizes=[8])) == 2


@pytest.mark.parametrize("name", ["cupy", "numba", "pycuda"])
def test_kinds_of_memory_that_are_not_installed_name_their_extra(name):
    with raises(BackendUnavailable, names=(f"'{name}'", f"pip install 'hocket[{name}]'")):
        choose_points(["bcast"], parse_targets("shm"), buffers=[name])


@pytest.mark.parametrize(
    ("name", "num_ranks", "names"),
    [
        ("latency", 1, ("latency", "2", "1")),
        ("multi_lat", 3, ("multi_latency", "3")),
    ],
)
def test_too_few_ranks_or_odd_ones(name, num_ranks, names):
    with raises(InvalidArgument, names=names):
        check_points(choose_points([name], parse_targets("shm"), sizes=[8]), num_ranks)


def test_libraries_by_name():
    assert [each.name for each in parse_targets("shm,mpi:*,mpi4py:mpich,torch:gloo,mix")] == [
        "shm", "mpi:openmpi", "mpi:mpich", "mpi4py:mpich", "torch:gloo", "mix",
    ]  # fmt: skip
    with raises(InvalidArgument, names=("'shmm'", "shm", "mix", "mpi4py:openmpi")):
        parse_targets("shmm")
    with raises(InvalidArgument, names="'shm,shm'"):
        parse_targets("shm,shm")
