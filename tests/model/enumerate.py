"""Families of small programs, each complete up to the symmetries that its docstring names.

The two backends of a communicator are interchangeable, so its first collective is always on backend 0. Ranks with
the same part in a program are interchangeable, so only one arrangement of their scripts is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, permutations, product

from .program import Operation, Program, Script
from .scripts import (
    Deps,
    Shape,
    batched,
    chain_deps,
    inside,
    no_deps,
    orders,
    scripts,
    single_deps,
)

PAIR = ((0, 1),)
WORLD_AND_PAIRS = ((0, 1, 2), (0, 1), (1, 2), (0, 2))


def table(*, order_differs: bool, chained: bool) -> Iterator[Program]:
    """The 216 or 648 programs of three collectives on two ranks and two backends that a table of results counts.

    Every assignment of the three to two backends that uses both (6), everything issued before the first wait, every
    order of waits on each rank (6 x 6): 216. With differing orders rank 1 issues in any order that keeps each lane's
    (3, one of them that of rank 0): 648. In a chain each operation depends on the one that the same rank issued before.
    No symmetry is used.
    """
    deps = chain_deps if chained else no_deps
    for backends in product((0, 1), repeat=3):
        lanes = [[op for op in range(3) if backends[op] == backend] for backend in (0, 1)]
        if not all(lanes):
            continue
        first = scripts([(0, 1, 2)], batched, deps)
        second = scripts(orders(lanes) if order_differs else [(0, 1, 2)], batched, deps)
        for pair in product(first, second):
            yield Program(PAIR, _collectives([0] * 3, backends), pair)


def one_communicator(num_ranks: int, num_ops: int, shape: Shape, deps: Deps) -> Iterator[Program]:
    """Collectives of the world on up to two backends, issued in one order; dependencies differ between ranks."""
    choices = scripts([tuple(range(num_ops))], shape, deps)
    for backends in _backends([0] * num_ops):
        for chosen in combinations_with_replacement(choices, num_ranks):
            yield Program((tuple(range(num_ranks)),), _collectives([0] * num_ops, backends), chosen)


def groups(num_ops: int, shape: Shape, deps: Deps) -> Iterator[Program]:
    """Collectives of the world of three ranks and of its three pairs, dependencies inside a communicator only.

    Each rank interleaves the communicators as it likes. Ranks are interchangeable: only one of the up to six
    renumberings of a choice of communicators is kept.
    """
    seen = set()
    for chosen in combinations_with_replacement(range(len(WORLD_AND_PAIRS)), num_ops):
        alike = min(_renumbered(chosen, ranks) for ranks in permutations(range(3)))
        if alike not in seen:
            seen.add(alike)
            yield from _several(WORLD_AND_PAIRS, chosen, shape, deps, across=False)


def twins(num_ops: tuple[int, int], shape: Shape, deps: Deps, *, across: bool = False) -> Iterator[Program]:
    """Two communicators of the same two ranks; with `across`, dependencies also lead from one to the other."""
    chosen = [0] * num_ops[0] + [1] * num_ops[1]
    return _several(PAIR * 2, chosen, shape, deps, across=across)


def overlapping(num_ops: tuple[int, int], shape: Shape, deps: Deps, *, across: bool = False) -> Iterator[Program]:
    """Two communicators of two ranks each, one of which is in both."""
    chosen = [0] * num_ops[0] + [1] * num_ops[1]
    return _several(((0, 1), (1, 2)), chosen, shape, deps, across=across)


def exchange(shape: Shape, deps: Deps = no_deps) -> Iterator[Program]:
    """A collective and a message each way between two ranks, in any order; each message finds room or does not."""
    for eager in ((False, False), (False, True), (True, True)):
        yield from _messages([(0, 1, 0, eager[0]), (1, 0, 0, eager[1])], shape, deps, symmetric=eager[0] == eager[1])


def one_way(shape: Shape, deps: Deps = no_deps) -> Iterator[Program]:
    """A collective and two messages from rank 0 to rank 1 with one tag or two, none of which finds room."""
    for tags in ((0, 0), (0, 1)):
        yield from _messages([(0, 1, tag, False) for tag in tags], shape, deps, symmetric=False)


def ring(shape: Shape, *, barrier: bool) -> Iterator[Program]:
    """Three ranks send to the right and receive from the left, none finds room; with a collective of all, or not."""
    ends = [Operation("send", peer=(rank + 1) % 3) for rank in range(3)]
    ends += [Operation("recv", peer=(rank - 1) % 3) for rank in range(3)]
    operations = (*ends, Operation("collective")) if barrier else tuple(ends)
    choices = [scripts(permutations([rank, rank + 3, 6][: 3 if barrier else 2]), shape) for rank in range(3)]
    for places in product(range(len(choices[0])), repeat=3):
        if places == min(places[turn:] + places[:turn] for turn in range(3)):  # the ring looks the same turned round
            yield Program(((0, 1, 2),), operations, _pick(choices, places))


def any_order(num_ops: int, shape: Shape) -> Iterator[Program]:
    """As one communicator of two ranks, but rank 1 issues in any order (R1 broken but for one of them)."""
    first = scripts([tuple(range(num_ops))], shape)
    second = scripts(permutations(range(num_ops)), shape)
    for backends in _backends([0] * num_ops):
        for pair in product(first, second):
            yield Program(PAIR, _collectives([0] * num_ops, backends), pair)


def any_deps(num_ops: int, shape: Shape) -> Iterator[Program]:
    """As one communicator of two ranks, but single dependencies point forwards as well (R5 broken in half of them)."""
    return one_communicator(2, num_ops, shape, single_deps)


def any_choice(num_ops: int, shape: Shape) -> Iterator[Program]:
    """As one communicator of two ranks, but rank 1 chooses its backends freely (R8 broken but for one choice)."""
    choices = scripts([tuple(range(num_ops))], shape)
    for backends in _backends([0] * num_ops):
        for others in product((0, 1), repeat=num_ops):
            differing = tuple((op, other) for op, other in enumerate(others) if other != backends[op])
            for first, second in product(choices, repeat=2):
                pair = (first, replace(second, choices=differing))
                yield Program(PAIR, _collectives([0] * num_ops, backends), pair)


def _collectives(communicators: Sequence[int], backends: Sequence[int]) -> tuple[Operation, ...]:
    pairs = zip(communicators, backends, strict=True)
    return tuple(Operation("collective", communicator, backend) for communicator, backend in pairs)


def _backends(chosen: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Two backends for the operations of each communicator, the first of which is on backend 0."""
    firsts = {chosen.index(communicator) for communicator in chosen}
    return product(*((0,) if op in firsts else (0, 1) for op in range(len(chosen))))


def _renumbered(chosen: Sequence[int], ranks: Sequence[int]) -> tuple[int, ...]:
    members = [tuple(sorted(ranks[rank] for rank in group)) for group in WORLD_AND_PAIRS]
    return tuple(sorted(WORLD_AND_PAIRS.index(members[communicator]) for communicator in chosen))


def _several(
    communicators: tuple[tuple[int, ...], ...], chosen: Sequence[int], shape: Shape, deps: Deps, *, across: bool
) -> Iterator[Program]:
    num_ranks = 1 + max(max(members) for members in communicators)
    sequences = [[op for op, each in enumerate(chosen) if each == name] for name in range(len(communicators))]
    choices = []
    for rank in range(num_ranks):
        mine = [ops for ops, members in zip(sequences, communicators, strict=True) if rank in members]
        choices.append(scripts(orders(mine), shape, deps if across else inside(mine, deps)))
    alike = all(choice == choices[0] for choice in choices)
    for backends in _backends(chosen):
        arranged: Iterable[tuple[Script, ...]]
        arranged = combinations_with_replacement(choices[0], num_ranks) if alike else product(*choices)
        for scripts_of_ranks in arranged:
            yield Program(communicators, _collectives(chosen, backends), scripts_of_ranks)


def _messages(
    messages: Sequence[tuple[int, int, int, bool]], shape: Shape, deps: Deps, *, symmetric: bool
) -> Iterator[Program]:
    """Operation 0 is a collective; each message (source, destination, tag, eager) adds its send and its receive."""
    operations = [Operation("collective")]
    mine: list[list[int]] = [[0], [0]]
    for source, destination, tag, eager in messages:
        for rank, end in (
            (source, Operation("send", peer=destination, tag=tag, eager=eager)),
            (destination, Operation("recv", peer=source, tag=tag)),
        ):
            mine[rank].append(len(operations))
            operations.append(end)
    if symmetric:  # both ranks list send before receive, so that equal places mean mirrored scripts
        mine[1] = [0, *mine[1][:0:-1]]
    choices = [scripts(permutations(ops), shape, deps) for ops in mine]
    for places in product(range(len(choices[0])), range(len(choices[1]))):
        if not symmetric or places[0] <= places[1]:
            yield Program(PAIR, tuple(operations), _pick(choices, places))


def _pick(choices: Sequence[Sequence[Script]], places: Sequence[int]) -> tuple[Script, ...]:
    return tuple(choice[place] for choice, place in zip(choices, places, strict=True))
