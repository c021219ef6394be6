"""All scripts of one rank: in which order it issues, where it waits, what depends on what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, combinations, permutations, product

from .program import Script, Step

Order = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]
Shape = Callable[[Order], Iterable[tuple[Step, ...]]]  # where the waits stand, for an order of issue
Deps = Callable[[Order], Iterable[Pairs]]  # sets of dependencies, for an order of issue


def orders(sequences: Iterable[Sequence[int]]) -> Iterator[Order]:
    """All orders that keep the order inside each of the sequences."""
    kept = [list(sequence) for sequence in sequences]
    for order in permutations(chain.from_iterable(kept)):
        if all([op for op in order if op in sequence] == sequence for sequence in kept):
            yield order


def batched(order: Order) -> Iterator[tuple[Step, ...]]:
    """Everything is issued, then waited for in every order."""
    issues: tuple[Step, ...] = tuple(("issue", op) for op in order)
    for waits in permutations(order):
        yield issues + tuple(("wait", op) for op in waits)


def batched_in_order(order: Order) -> Iterator[tuple[Step, ...]]:
    """Everything is issued, then waited for first to last."""
    yield tuple(("issue", op) for op in order) + tuple(("wait", op) for op in order)


def batched_two_ways(order: Order) -> Iterator[tuple[Step, ...]]:
    """Everything is issued, then waited for first to last, or last to first."""
    issues: tuple[Step, ...] = tuple(("issue", op) for op in order)
    for waits in (order, order[::-1]):
        yield issues + tuple(("wait", op) for op in waits)


def interleaved(order: Order) -> Iterator[tuple[Step, ...]]:
    """A wait stands at every place after the issue of its operation."""

    def extend(steps: tuple[Step, ...], issued: int, pending: frozenset[int]) -> Iterator[tuple[Step, ...]]:
        if issued == len(order) and not pending:
            yield steps
        for op in order:  # not by number: equal places in two lists of scripts mean equal positions
            if op in pending:
                yield from extend((*steps, ("wait", op)), issued, pending - {op})
        if issued < len(order):
            yield from extend((*steps, ("issue", order[issued])), issued + 1, pending | {order[issued]})

    return extend((), 0, frozenset())


def with_drops(order: Order) -> Iterator[tuple[Step, ...]]:
    """As interleaved, and any of the waits may be missing."""
    found = set()
    for steps in interleaved(order):
        for count in range(len(order) + 1):
            for dropped in combinations(order, count):
                found.add(tuple(step for step in steps if step[0] == "issue" or step[1] not in dropped))
    return iter(sorted(found))


def with_repeats(order: Order) -> Iterator[tuple[Step, ...]]:
    """As interleaved, and one wait may be repeated at any later place."""
    for steps in interleaved(order):
        yield steps
        for place, step in enumerate(steps):
            if step[0] == "wait":
                for later in range(place + 1, len(steps) + 1):
                    yield steps[:later] + (step,) + steps[later:]


def no_deps(order: Order) -> Iterator[Pairs]:
    yield ()


def chain_deps(order: Order) -> Iterator[Pairs]:
    """Each operation depends on the one issued before it."""
    yield tuple(zip(order[1:], order, strict=False))


def no_or_chain_deps(order: Order) -> Iterator[Pairs]:
    yield ()
    yield from chain_deps(order)


def backward_deps(order: Order) -> Iterator[Pairs]:
    """Every set of dependencies on operations issued before."""
    return _subsets([(after, before) for place, after in enumerate(order) for before in order[:place]])


def few_backward_deps(order: Order) -> Iterator[Pairs]:
    """No dependency, each single one, and the chain."""
    yield ()
    for place, after in enumerate(order):
        for before in order[:place]:
            yield ((after, before),)
    yield from chain_deps(order)


def single_deps(order: Order) -> Iterator[Pairs]:
    """Each single dependency, on an operation issued before or later."""
    for pair in permutations(sorted(order), 2):
        yield (pair,)


def inside(groups: Sequence[Sequence[int]], deps: Deps) -> Deps:
    """The same dependencies, but those of each group (of one communicator) by themselves, in all combinations."""

    def apart(order: Order) -> Iterator[Pairs]:
        together = [tuple(op for op in order if op in group) for group in groups]
        for pairs in product(*(tuple(deps(each)) for each in together)):
            yield tuple(chain.from_iterable(pairs))

    return apart


def scripts(issue_orders: Iterable[Order], shape: Shape, deps: Deps = no_deps) -> list[Script]:
    return [Script(steps, pairs) for order in issue_orders for steps in shape(order) for pairs in deps(order)]


def _subsets(pairs: Sequence[tuple[int, int]]) -> Iterator[Pairs]:
    return chain.from_iterable(combinations(pairs, count) for count in range(len(pairs) + 1))
