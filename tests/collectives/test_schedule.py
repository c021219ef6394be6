"""Errors of schedules are found and named; verified schedules compute the right results."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.collectives import Schedule, Transfers, algorithms, find_algorithm, make_schedule, verify
from hocket.collectives.blocks import block_sizes
from hocket.collectives.schedule import COLUMNS, from_columns
from hocket.collectives.source import Schedules
from hocket.collectives.transform import reverse, rotated, segmented, sequence
from hocket.errors import InvalidArgument, InvalidSchedule
from hocket.sim import Link

from ..naming import raises


def changed(schedule: Schedule, **columns: object) -> Schedule:
    given = {name: getattr(schedule, name).copy() for name in COLUMNS} | columns
    return from_columns(
        schedule.collective, schedule.num_ranks, schedule.num_blocks, schedule.num_slots, given, ports=schedule.ports
    )


def without(schedule: Schedule, row: int) -> Schedule:
    keep = np.arange(len(schedule)) != row
    return changed(schedule, **{name: getattr(schedule, name)[keep] for name in COLUMNS})


@pytest.mark.timeout(120)
def test_a_schedule_with_one_transfer_less_is_refused() -> None:
    """Every transfer is needed, since each block is delivered exactly once."""
    refused = 0
    for algorithm in algorithms():
        if algorithm.collective == "barrier":
            continue  # its notifications may be repeated
        schedule = algorithm.schedule(8)
        for row in range(0, len(schedule), 1 + len(schedule) // 20):
            with pytest.raises(InvalidSchedule):
                verify(without(schedule, row))
            refused += 1
    assert refused > 300


@pytest.mark.timeout(120)
def test_a_transfer_done_twice_is_refused() -> None:
    for algorithm in algorithms():
        if algorithm.collective == "barrier":
            continue
        schedule = algorithm.schedule(8)
        columns = {name: np.append(getattr(schedule, name), getattr(schedule, name)[-1]) for name in COLUMNS}
        columns["rounds"][-1] += 1
        twice = changed(schedule, **columns)
        if schedule.reduces[-1] or not algorithm.collective.endswith("reduce"):
            with pytest.raises(InvalidSchedule):
                verify(twice)


@pytest.mark.timeout(120)
def test_random_wrong_tables_are_refused() -> None:
    """Of 500 schedules with one changed number, `verify` accepts only those that still compute the right result."""
    random = np.random.default_rng(7)
    candidates = [each for each in algorithms() if each.collective != "barrier"]
    refused = 0
    for _ in range(500):
        algorithm = candidates[random.integers(len(candidates))]
        schedule = algorithm.schedule(8)
        name = ("sources", "destinations", "blocks", "source_slots", "destination_slots")[random.integers(5)]
        column = getattr(schedule, name).copy()
        row = random.integers(len(schedule))
        limits = {"sources": 8, "destinations": 8, "blocks": schedule.num_blocks}
        limit = limits.get(name, schedule.num_slots)
        column[row] = (column[row] + random.integers(1, max(2, limit))) % limit
        if column[row] == getattr(schedule, name)[row]:
            continue
        broken = changed(schedule, **{name: column})
        try:
            verify(broken)
        except InvalidSchedule:
            refused += 1
        else:
            assert is_correct(broken), (algorithm.name, name, row)
    assert refused > 400


def is_correct(schedule: Schedule) -> bool:
    """Run a schedule on numbers, independent of `verify`; each rank's value is a power of three, so sums are unique."""
    n = schedule.num_ranks
    values = np.zeros((n, schedule.num_slots), object)
    collective = schedule.collective
    parts = schedule.num_blocks // n if collective in ("all_gather", "reduce_scatter") else 0
    for rank in range(n):
        for slot in range(n if collective == "all_to_all" else schedule.num_blocks):
            holds = {
                "broadcast": rank == 0,
                "all_gather": parts and slot // max(parts, 1) == rank,
            }.get(collective, True)
            if holds:
                reduces = collective in ("all_reduce", "reduce", "reduce_scatter", "scan")
                values[rank, slot] = 3**rank * 1000 + (0 if reduces else slot)
    for number in range(schedule.num_rounds):
        rows = np.flatnonzero(schedule.rounds == number)
        read = [values[schedule.sources[row], schedule.source_slots[row]] for row in rows]
        for row, value in zip(rows, read, strict=True):
            place = schedule.destinations[row], schedule.destination_slots[row]
            values[place] = values[place] + value if schedule.reduces[row] else value
    total = sum(3**rank * 1000 for rank in range(n))
    for rank in range(n):
        for slot in range(schedule.num_blocks if collective != "all_to_all" else n):
            computed = values[rank, slot if collective != "all_to_all" else n + slot]
            expected = {
                "broadcast": 1000 + slot,
                "all_gather": 3 ** (slot // max(parts, 1)) * 1000 + slot,
                "all_to_all": 3**slot * 1000 + rank,
                "scan": sum(3**each * 1000 for each in range(rank + 1)),
            }.get(collective, total)
            if (collective == "reduce" and rank) or (collective == "reduce_scatter" and slot // parts != rank):
                continue
            if computed != expected:
                return False
    return True


@pytest.mark.timeout(120)
def test_numbers_agree_with_the_proof() -> None:
    for algorithm in algorithms():
        if algorithm.collective != "barrier":
            assert is_correct(algorithm.schedule(8)), algorithm.name


def test_messages_name_the_place() -> None:
    with raises(InvalidSchedule, names=("round 0", "block 0", "rank 1", "rank 2")):
        verify(make_schedule("broadcast", 3, 1, [Transfers(1, 2, 0)]))
    with raises(InvalidSchedule, names=("round 0", "rank 0", "2", "ports", "1")):
        verify(make_schedule("broadcast", 3, 1, [[Transfers(0, 1, 0), Transfers(0, 2, 0)]]))
    with raises(InvalidSchedule, names=("rank 2", "slot 0", "block 0")):
        verify(make_schedule("broadcast", 3, 1, [Transfers(0, 1, 0)]))
    with raises(InvalidSchedule, names=("round 1", "block 0", "rank 0", "rank 1")):
        verify(make_schedule("broadcast", 2, 1, [Transfers(0, 1, 0), Transfers(0, 1, 0)]))
    with raises(InvalidSchedule, names=("round 1", "block 0", "rank 1", "rank 0")):
        verify(make_schedule("reduce", 2, 1, [Transfers(1, 0, 0, reduces=True), Transfers(1, 0, 0, reduces=True)]))
    with raises(InvalidSchedule, names=("rank 0", "block 0", "rank 1")):
        verify(make_schedule("reduce", 2, 1, []))
    with raises(InvalidSchedule, names=("rank 0", "block 0")):
        verify(make_schedule("all_reduce", 2, 1, [Transfers(1, 0, 0)]))
    with raises(InvalidSchedule, names=("broadcast", "round 0", "rank 0", "rank 1")):
        verify(make_schedule("broadcast", 2, 1, [Transfers(0, 1, 0, reduces=True)]))
    with raises(InvalidSchedule, names=("all_to_all", "slots", "4", "2")):
        verify(make_schedule("all_to_all", 2, 4, [], num_slots=2))
    with raises(InvalidSchedule, names="'sort'"):
        verify(make_schedule("sort", 2, 1, []))
    with raises(InvalidSchedule, names=("sources", "5", "0", "1")):
        make_schedule("broadcast", 2, 1, [Transfers(5, 1, 0)])
    with raises(InvalidSchedule, names="rounds"):
        from_columns("broadcast", 2, 1, 1, {})
    with raises(InvalidSchedule, names=("all_gather", "2", "3")):
        verify(make_schedule("all_gather", 2, 3, []))


def test_wrong_arguments_of_algorithms() -> None:
    with raises(InvalidArgument, names=("all_gather", "'chain'", "bruck", "circulant")):
        find_algorithm("all_gather", "chain")
    with raises(InvalidArgument, names="'sort'"):
        find_algorithm("sort", "chain")
    chain = find_algorithm("broadcast", "chain")
    with raises(InvalidArgument, names=("1", "0")):
        chain.schedule(0)
    with raises(InvalidArgument, names=("'chunks'", "num_blocks")):
        chain.schedule(2, chunks=4)
    with raises(InvalidArgument, names=("num_blocks", "chain", "1", "0")):
        chain.schedule(2, num_blocks=0)
    with raises(InvalidArgument, names=("all_gather", "recursive_doubling", "6")):
        find_algorithm("all_gather", "recursive_doubling").schedule(6)
    with raises(InvalidArgument, names=("6", "4")):
        find_algorithm("all_reduce", "hierarchical").schedule(6, ranks_per_host=4)


@pytest.mark.parametrize("root", [0, 1, 4])
def test_rotation_moves_the_root(root: int) -> None:
    schedule = rotated(find_algorithm("broadcast", "binomial").schedule(5), root)
    first = schedule.rounds == 0
    assert schedule.sources[first].tolist() == [root]


def test_passes_keep_schedules_correct() -> None:
    chain = find_algorithm("broadcast", "chain").schedule(5, num_blocks=3)
    verify(reverse(chain))
    verify(sequence("all_reduce", reverse(chain), chain))
    verify(segmented(find_algorithm("all_gather", "bruck").schedule(7), 3))
    with raises(InvalidSchedule, names=("reduce", "broadcast")):
        reverse(reverse(chain))
    with raises(InvalidSchedule, names=("5", "3", "1")):
        sequence("all_reduce", chain, find_algorithm("broadcast", "binomial").schedule(5))


def test_hierarchy_of_any_two() -> None:
    hierarchical = find_algorithm("all_reduce", "hierarchical")
    for outer in ("ring", "circulant", "recursive_doubling", "rabenseifner", "fixed_order", "double_tree"):
        for inner in ("ring", "circulant", "recursive_halving"):
            if inner == "recursive_halving":
                with raises(InvalidArgument, names="'recursive_halving'"):
                    hierarchical.schedule(12, ranks_per_host=4, inner=inner, outer=outer)
                continue
            verify(hierarchical.schedule(12, ranks_per_host=4, inner=inner, outer=outer))


def test_a_block_reduced_into_another_one_is_refused() -> None:
    """In the end all parts of block 0 are in its slot, but a part of block 1 was added, too."""
    rows = [  # round, source, destination, block, source's slot, destination's slot, reduces
        (0, 0, 0, 1, 1, 2, False),
        (1, 1, 0, 0, 0, 2, True),
        (2, 0, 0, 0, 2, 0, False),
        (3, 0, 1, 0, 0, 0, False),
        (4, 1, 0, 1, 1, 1, True),
        (5, 0, 1, 1, 1, 1, False),
    ]
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    with pytest.raises(InvalidSchedule, match="round 1"):
        verify(from_columns("all_reduce", 2, 2, 3, columns))
    columns["blocks"] = (0, *columns["blocks"][1:])
    columns["source_slots"] = (0, *columns["source_slots"][1:])
    verify(from_columns("all_reduce", 2, 2, 3, columns))


def test_a_user_schedule_is_proven_before_it_is_executed() -> None:
    schedules = Schedules(lambda num_hosts: Link(1e-6, 1e-9))
    correct = find_algorithm("all_reduce", "ring").schedule(4)
    assert schedules.build("all_reduce", correct, 4)[1] is correct
    with pytest.raises(InvalidSchedule):
        schedules.build("all_reduce", without(correct, 0), 4)


@pytest.mark.parametrize(
    ("nbytes", "num_blocks", "itemsize", "sizes"),
    [(10, 4, 1, [3, 3, 2, 2]), (28, 4, 4, [8, 8, 8, 4]), (8, 4, 4, [4, 4, 0, 0]), (0, 2, 8, [0, 0])],
)
def test_the_first_blocks_are_the_largest(nbytes: int, num_blocks: int, itemsize: int, sizes: list[int]) -> None:
    """The rule must be that of the native core, or operations that mix both would be wrong."""
    assert block_sizes(nbytes, num_blocks, itemsize).tolist() == sizes
