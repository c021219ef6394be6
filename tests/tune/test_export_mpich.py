"""Choices for MPICH, which itself follows them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from hocket.bench.launchers import mpich_job, wheel_file
from hocket.tune import Table
from hocket.tune.export import export_table
from hocket.tune.exporters._mpich_tree import Tree, own_choices
from hocket.tune.exporters.mpich_json import _ALGORITHMS
from hocket.tune.fit import Fit

from ..tier import sample
from .tables import MACHINE, row

NBYTES = 1 << 16
FITS = (Fit("mpi", 1e-6, 1e-9, 1e-10, 0.0),)


def table(*bests: tuple[str, str, int], sizes: Sequence[int] = (NBYTES,)) -> Table:
    """One in which these schedules are the fastest: (collective, schedule, number of ranks)."""
    rows = [
        row(op, "mpi", nbytes, 1e-12, num_ranks=ranks, algorithm=name) for op, name, ranks in bests for nbytes in sizes
    ]
    return Table(MACHINE, tuple(rows), fits=FITS)


@pytest.fixture(scope="module")
def library() -> bytes:
    return Path(wheel_file("mpich", "libmpi.so.12")).read_bytes()


def _holds(condition: str, call: dict[str, Any]) -> bool:
    subject, relation, value = re.fullmatch(r"(\w+?)(<=|<|=)(\w+)", condition).groups()
    if value == "any":
        return True
    if value == "pow2":
        size = call["comm_size"]
        return size & (size - 1) == 0 if relation == "=" else call["few items"]
    if relation == "=":
        return call[subject] == value
    return call[subject] <= int(value) if relation == "<=" else call[subject] < int(value)


def _leaf(tree: Tree, call: dict[str, Any]) -> Tree:
    """What the tree says of a call, looked for as MPICH does: the first condition that holds, and no way back."""
    while not next(iter(tree)).startswith("algorithm="):
        tree = next(below for condition, below in tree.items() if _holds(condition, call))
    return tree


def _conditions(tree: Tree) -> Iterator[str]:
    for condition, below in tree.items():
        if not condition.startswith("algorithm="):
            yield condition
            yield from _conditions(below)


_VALUES: dict[str, Sequence[Any]] = {
    "comm_size": (1, 2, 3, 7, 8, 9, 16),
    "comm_type": ("intra", "inter"),
    "comm_hierarchy": ("parent", "flat"),
    "avg_msg_size": sorted({border + i for border in (8, 256, 2048, 12288, 32768, 524288) for i in (-1, 0, 1)}),
    "total_msg_size": sorted({border + i for border in (2048, 81920, 524288) for i in (-1, 0, 1)}),
    "count": (False, True),
    **dict.fromkeys(
        ("commutative", "op_built_in", "sendbuf_inplace", "block_regular", "node_consecutive"), ("yes", "no")
    ),
}


def _calls(tree: Tree) -> Iterator[dict[str, Any]]:
    """All calls that the tree could tell apart."""
    subjects = sorted({re.split("[<=]", condition)[0] for condition in _conditions(tree)} | {"comm_size"})
    for values in product(*(_VALUES[subject.removeprefix("is_")] for subject in subjects)):
        call = dict(zip(subjects, values, strict=True))
        yield call | {"few items": call.get("count")}


def test_own_choices_are_those_of_mpich(library: bytes) -> None:
    """The wheel's library holds its own tree as text."""
    texts = (match.group().decode() for match in re.finditer(rb'\{\s*"collective=bcast"[^\0]+', library))
    theirs = next(tree for tree in map(json.loads, texts) if "MPIR_Bcast" in str(tree))
    ours = {f"collective={name}": tree for name, tree in own_choices().items()}
    assert set(ours) == set(theirs)
    for name, tree in theirs.items():
        for call in _calls(tree):
            if not (name.endswith("scan") and call.get("comm_type") == "inter"):  # there is none
                assert _leaf(ours[name], call) == _leaf(tree, call), (name, call)


def _all_trees(tree: Tree) -> Iterator[Tree]:
    yield tree
    for below in tree.values():
        yield from _all_trees(below)


def _intra(text: str, collective: str) -> Tree:
    return json.loads(text)[f"collective={collective}"]["comm_type=intra"]


@pytest.mark.parametrize("ranks", [(), (4,), (3, 4, 6, 1024)])
def test_every_call_has_an_algorithm_that_mpich_knows(library: bytes, ranks: Sequence[int]) -> None:
    tree = json.loads(export_table(table(("broadcast", "chain(num_blocks=8)", 4)), "mpich-json", ranks))
    leaves = {key for each in _all_trees(tree) for key in each if key.startswith("algorithm=")}
    assert all(f"{leaf}\0".encode() in library for leaf in leaves)
    for collective in tree.values():
        for call in _calls(collective):
            if call.get("comm_type") != "inter" or "comm_type=inter" in collective:
                assert _leaf(collective, call)
        sizes = [re.split("<=|=", key)[1] for key in _conditions(collective) if key.startswith(("avg", "total"))]
        assert all(size == "any" or int(size) < 1 << 31 for size in sizes)


def test_choices_say_what_is_fastest() -> None:
    chain = export_table(table(("broadcast", "chain(num_blocks=8)", 4)), "mpich-json")
    parameters = ("tree_type=kary", "k=1", "chunk_size=8192", "is_non_blocking=1", "recv_pre_posted=0")
    leaf = {"algorithm=MPIR_Bcast_intra_pipelined_tree": {key: {} for key in parameters}}
    assert _intra(chain, "bcast") == {"comm_size=any": {"avg_msg_size=any": leaf}}
    sized = table(("all_gather", "ring", 2), ("all_gather", "ring", 4), sizes=(1024, 4096))
    rows = [row for row in sized.rows if (row.num_ranks, row.nbytes) != (4, 1024)]
    bruck = table(("all_gather", "bruck", 4), sizes=(1024,)).rows
    both = _intra(export_table(Table(MACHINE, (*rows, *bruck), fits=FITS), "mpich-json"), "allgather")
    ring = {"algorithm=MPIR_Allgather_intra_ring": {}}
    assert both == {
        "comm_size<=2": {"total_msg_size=any": ring},
        "comm_size=any": {
            "total_msg_size<=16383": {"algorithm=MPIR_Allgather_intra_brucks": {}},  # of four blocks
            "total_msg_size=any": ring,
        },
    }


def test_powers_of_two_have_algorithms_of_their_own() -> None:
    """MPICH's form of this schedule is for these alone: 3 ranks, and 5, get the next best one."""
    best = table(("broadcast", "scatter_bruck", 3), ("broadcast", "scatter_bruck", 8))
    tree = _intra(export_table(best, "mpich-json"), "bcast")
    for num_ranks in range(1, 20):
        (leaf,) = _leaf(tree, {"comm_size": num_ranks, "avg_msg_size": NBYTES})
        is_power = num_ranks in (4, 8, 16)  # 1 and 2 have the rules of 3
        assert leaf.endswith("scatter_recursive_doubling_allgather") == is_power, (num_ranks, leaf)


def run(script: Path, num_ranks: int, choices: Path, *arguments: str, device: str = "none") -> str:
    """Run a program under MPICH's own launcher, which takes its ranks with it when it has to end."""
    python = [sys.executable, "-m", "mpi4py"]  # a rank that raises ends the others
    (launcher,) = mpich_job([*python, str(script), *arguments], num_ranks).processes
    environ = {
        **os.environ,
        **launcher.env,
        "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE": str(choices),
        "MPIR_CVAR_DEVICE_COLLECTIVES": device,
    }
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(launcher.argv, env=environ, **pipes, start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                output, _ = process.communicate(timeout=10)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"did not end within 60 s:\n{output}") from None
    assert process.returncode == 0, output
    return output


_SUMS = """
import sys
from functools import reduce

import mpi4py
mpi4py.rc.threads = sys.argv[2] == "threads"
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
BLOCK = 512
x_RN = np.random.default_rng(7).standard_normal((4, 4 * BLOCK)) * 10.0 ** np.arange(4)[:, None]
blocks = [slice(i * BLOCK, (i + 1) * BLOCK) for i in range(4)]

def rotated(first, step):
    # Each block is summed along the ranks, from one that depends on the block.
    return np.concatenate([
        reduce(np.add, [x_RN[(block + first + step * i) % 4, blocks[block]] for i in range(4)]) for block in range(4)
    ])

sums = {
    "neighbours first": (x_RN[0] + x_RN[1]) + (x_RN[2] + x_RN[3]),
    "halves first": (x_RN[0] + x_RN[2]) + (x_RN[1] + x_RN[3]),
    "up the ring": rotated(1, 1),
    "down from the owner": rotated(0, -1),
}
for _ in range(8):
    if sys.argv[1] == "all_reduce":
        y = np.empty_like(x_RN[0])
        comm.Allreduce(x_RN[comm.rank], y)
    else:
        part = np.empty(BLOCK)
        comm.Reduce_scatter_block(x_RN[comm.rank], part)
        y = np.concatenate(comm.allgather(part))
    if comm.rank == 0:
        print([name for name, each in sums.items() if (each == y).all()], flush=True)
"""


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("op", "best", "order"),
    [
        ("all_reduce", "ring", "up the ring"),
        ("all_reduce", "recursive_doubling", "neighbours first"),
        ("reduce_scatter", "ring", "down from the owner"),
        ("reduce_scatter", "recursive_halving", "halves first"),
    ],
)
def test_mpich_sums_in_the_order_of_the_choice(tmp_path: Path, op: str, best: str, order: str) -> None:
    """Floats tell in which order they were added: bit for bit it is that of the algorithm, at each of eight calls."""
    script, choices = tmp_path / "sums.py", tmp_path / "choices.json"
    script.write_text(_SUMS)
    choices.write_text(export_table(table((op, best, 4)), "mpich-json"))
    for threads in sample(["threads", "no threads"], 1):
        assert run(script, 4, choices, op, threads).splitlines() == [f"['{order}']"] * 8


_RELAY = """
import sys
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
expected = np.arange(1 << 16) % 251
x = np.zeros(1 << 16, np.uint8) if comm.rank else expected.astype(np.uint8)
comm.Barrier()
came = False
if comm.rank == 1:
    end = time.monotonic() + float(sys.argv[1])
    while not came and time.monotonic() < end:
        came = comm.Iprobe(2, 7)
comm.Bcast(x, 0)
assert (x == expected).all()
if comm.rank == 2:
    comm.send("done", 1, 7)
if comm.rank == 1:
    comm.recv(source=2, tag=7)
    print(came)
"""


@pytest.mark.timeout(150)
def test_mpich_broadcasts_along_the_chosen_tree(tmp_path: Path) -> None:
    """Rank 1 comes late. Down a chain rank 2 waits for it; in a binomial tree it has the array from the root."""
    script, choices = tmp_path / "relay.py", tmp_path / "choices.json"
    script.write_text(_RELAY)
    choices.write_text(export_table(table(("broadcast", "chain(num_blocks=8)", 4)), "mpich-json"))
    assert run(script, 4, choices, "1").strip() == "False"
    choices.write_text(export_table(table(("broadcast", "binomial", 4)), "mpich-json"))
    assert run(script, 4, choices, "40").strip() == "True"


_EVERYTHING = """
import numpy as np
from mpi4py import MPI

def keep_left(left, right, datatype):
    np.frombuffer(right, np.int64)[:] = np.frombuffer(left, np.int64)

def add(left, right, datatype):
    np.frombuffer(right, np.int64)[:] += np.frombuffer(left, np.int64)

LEFT, ADD = MPI.Op.Create(keep_left, commute=False), MPI.Op.Create(add, commute=True)

def check(found, expected, what):
    assert np.array_equal(found, expected), (what, found, expected)

def call(comm, name, *arguments, blocking=True):
    if blocking:
        getattr(comm, name)(*arguments)
    else:
        getattr(comm, "I" + name.lower())(*arguments).Wait()

def collectives(comm, count, blocking):
    def do(name, *arguments):
        call(comm, name, *arguments, blocking=blocking)

    rank, size = comm.rank, comm.size
    x_RN = np.arange(size)[:, None] * 1000 + np.arange(count) % 977 + 1
    x, root = x_RN[rank].copy(), size - 1
    blocks_RN = x_RN.repeat(size, axis=1).reshape(size, count, size).swapaxes(1, 2).reshape(size, -1).copy()
    do("Barrier")
    y = x.copy()
    do("Bcast", y, root)
    check(y, x_RN[root], "bcast")
    for op, expected in ((MPI.SUM, x_RN.sum(0)), (ADD, x_RN.sum(0)), (LEFT, x_RN[0])):
        y = np.empty_like(x)
        do("Allreduce", x, y, op)
        check(y, expected, "allreduce")
        y = x.copy()
        do("Allreduce", MPI.IN_PLACE, y, op)
        check(y, expected, "allreduce in place")
        do("Reduce", x, y, op, root)
        if rank == root:
            check(y, expected, "reduce")
        do("Reduce_scatter_block", blocks_RN[rank], y, op)
        check(y, expected, "reduce_scatter_block")
        for counts in ([count] * size, [count * size] + [0] * (size - 1)):
            y = np.empty(counts[rank], x.dtype)
            do("Reduce_scatter", blocks_RN[rank], y, counts, op)
            check(y, np.tile(expected, size)[: counts[rank]], "reduce_scatter")
        y = np.empty_like(x)
        do("Scan", x, y, op)
        check(y, x_RN[0] if op is LEFT else x_RN[: rank + 1].sum(0), "scan")
        do("Exscan", x, y, op)
        if rank:
            check(y, x_RN[0] if op is LEFT else x_RN[:rank].sum(0), "exscan")
    counts, places = [count] * size, [count * i for i in range(size)]
    y_RN = np.empty_like(x_RN)
    do("Allgather", x, y_RN)
    check(y_RN, x_RN, "allgather")
    y_RN[:] = 0
    do("Allgatherv", x, [y_RN, counts, places, MPI.INT64_T])
    check(y_RN, x_RN, "allgatherv")
    for name, target in (("Gather", y_RN), ("Gatherv", [y_RN, counts, places, MPI.INT64_T])):
        y_RN[:] = 0
        do(name, x, target if rank == root else None, root)
        if rank == root:
            check(y_RN, x_RN, name)
    for name, source in (("Scatter", x_RN), ("Scatterv", [x_RN, counts, places, MPI.INT64_T])):
        y = np.empty_like(x)
        do(name, source if rank == root else None, y, root)
        check(y, x, name)
    to_all = np.tile(x, size)
    each = [to_all, counts, places, MPI.INT64_T]
    sent = [to_all, counts, [8 * place for place in places], [MPI.INT64_T] * size]
    for name, source in (("Alltoall", to_all), ("Alltoallv", each), ("Alltoallw", sent)):
        for given in (source, MPI.IN_PLACE):
            y = to_all.copy()
            do(name, given, [y, *source[1:]] if isinstance(source, list) else y)
            check(y, x_RN.ravel(), name)

def neighbours(comm, count, blocking):
    ring = comm.Create_cart([comm.size], periods=[True])
    x = np.full(count, ring.rank)
    counts, places = [count, count], [0, count]
    left, right = ring.Shift(0, 1)
    expected = np.repeat([left, right], count)
    both = np.tile(x, 2)
    types = [MPI.INT64_T] * 2
    for name, sent, form in (
        ("Neighbor_allgather", x, lambda y: y),
        ("Neighbor_allgatherv", x, lambda y: [y, counts, places, MPI.INT64_T]),
        ("Neighbor_alltoall", both, lambda y: y),
        ("Neighbor_alltoallv", [both, counts, places, MPI.INT64_T], lambda y: [y, counts, places, MPI.INT64_T]),
        ("Neighbor_alltoallw", [both, counts, [0, 8 * count], types], lambda y: [y, counts, [0, 8 * count], types]),
    ):
        y = np.empty_like(both)
        call(ring, name, sent, form(y), blocking=blocking)
        check(y, expected, name)
    ring.Free()

def between(comm, count, blocking):
    half = comm.Split(comm.rank % 2, comm.rank)
    inter = half.Create_intercomm(0, comm, 1 - comm.rank % 2, 3)
    mine, theirs = np.full(count, comm.rank % 2 + 1), np.full(count, 2 - comm.rank % 2)
    far = inter.remote_size
    def do(name, *arguments):
        call(inter, name, *arguments, blocking=blocking)
    do("Barrier")
    y = np.empty_like(mine)
    do("Allreduce", mine, y)
    check(y, theirs * far, "allreduce between")
    y = np.empty(count * far, mine.dtype)
    do("Allgather", mine, y)
    check(y, np.tile(theirs, far), "allgather between")
    do("Alltoall", np.tile(mine, far), y)
    check(y, np.tile(theirs, far), "alltoall between")
    low = comm.rank % 2 == 0
    root = 0 if low else MPI.ROOT if half.rank == 0 else MPI.PROC_NULL  # rank 0 of the odd ones
    y = np.full(count, 5)
    do("Bcast", y, root)
    do("Gather", mine if low else None, y if root == 0 else np.empty(count * far, y.dtype), root)
    do("Scatter", np.full(count * far, 5) if not low else None, y, root)
    check(y, np.full(count, 5), "bcast and scatter between")
    do("Reduce", mine, y, MPI.SUM, root)
    check(y, theirs * far if root == MPI.ROOT else np.full(count, 5), "reduce between")
    inter.Free()
    half.Free()

world = MPI.COMM_WORLD
parts = [world, MPI.COMM_SELF, world.Dup(), world.Split(world.rank // 2, -world.rank)]
for comm in parts:
    for count in (1, 3, 5000, 40_000):
        for blocking in (True, False):
            collectives(comm, count, blocking)
            neighbours(comm, count, blocking)
for count in (1, 5000):
    for blocking in (True, False):
        between(world, count, blocking)
print("ok", flush=True)
"""


@pytest.mark.timeout(100)
@pytest.mark.parametrize("num_ranks", sample([2, 3, 4], 1))
@pytest.mark.parametrize("number", [None, *sample(range(max(map(len, _ALGORITHMS.values()))), 2)])
def test_all_collectives_are_right_under_the_choices(tmp_path: Path, number: int | None, num_ranks: int) -> None:
    """Every algorithm in turn, or what the model says, for groups of any size.

    MPICH asserts where an algorithm cannot do what it is chosen for.
    """
    script, choices = tmp_path / "everything.py", tmp_path / "choices.json"
    script.write_text(_EVERYTHING)
    if number is None:
        text = export_table(Table(MACHINE, (), fits=FITS), "mpich-json", (2, 3, 4, 8))
    else:
        bests = [(op, list(names)[number % len(names)], 4) for op, names in _ALGORITHMS.items()]
        text = export_table(table(*bests, sizes=(64, 1 << 15)), "mpich-json")
    choices.write_text(text)
    device = "none" if number else "percoll"  # as the docs say, and MPICH's default
    assert run(script, num_ranks, choices, device=device).count("ok") == num_ranks
