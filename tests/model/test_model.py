"""The rules of mixing on all small programs: with them nothing deadlocks, without any one of them something does.

A program that no runtime can complete, because its operations wait for each other in a circle (`can_complete`), is the
user's error: it must deadlock in the model, and is counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest

from ..naming import raises
from ..tier import sample
from . import scripts as s
from .counter_examples import NAMES, counter_examples
from .enumerate import (
    any_choice,
    any_deps,
    any_order,
    exchange,
    groups,
    one_communicator,
    one_way,
    overlapping,
    ring,
    table,
    twins,
)
from .program import Operation, Program, Script, can_complete
from .rules import RULE_OF_SWITCH, Rules, Runtime, broken_rules, has_one_order_over_all, is_legal
from .semantics import ALL_RULES, Refused, check
from .survey import survey

Family = Callable[[], Iterable[Program]]


@dataclass(frozen=True)
class Expected:
    """Programs of a family that can complete, those that cannot, and how many of the former deadlock."""

    programs: int
    impossible: int = 0
    deadlocks: int = 0


FAMILIES: dict[str, tuple[Family, Expected]] = {
    "2 ranks, 3 operations": (lambda: one_communicator(2, 3, s.interleaved, s.few_backward_deps), Expected(11400)),
    "2 ranks, all dependencies": (lambda: one_communicator(2, 3, s.batched, s.backward_deps), Expected(4704)),
    "2 ranks, 4 operations": (lambda: one_communicator(2, 4, s.batched, s.no_deps), Expected(2400)),
    "3 ranks, 3 operations": (lambda: one_communicator(3, 3, s.interleaved, s.no_deps), Expected(2720)),
    "3 ranks, chain": (lambda: one_communicator(3, 3, s.batched, s.no_or_chain_deps), Expected(1456)),
    "3 ranks, 2 operations": (lambda: one_communicator(3, 2, s.interleaved, s.backward_deps), Expected(112)),
    "groups, 2 operations": (lambda: groups(2, s.interleaved, s.backward_deps), Expected(224, 2)),
    "groups, 3 operations": (lambda: groups(3, s.interleaved, s.no_deps), Expected(21894, 1652)),
    "groups, 3 operations, chain": (lambda: groups(3, s.batched, s.chain_deps), Expected(3024)),
    "same members": (lambda: twins((2, 1), s.interleaved, s.backward_deps), Expected(7542, 648)),
    "same members, 4 lanes": (lambda: twins((2, 2), s.batched_two_ways, s.no_or_chain_deps), Expected(4704)),
    "overlapping": (lambda: overlapping((2, 1), s.interleaved, s.backward_deps), Expected(1080)),
    "overlapping, 4 lanes": (lambda: overlapping((2, 2), s.batched, s.no_deps), Expected(2304)),
    "overlapping, 4 lanes, dependencies": (
        lambda: overlapping((2, 2), s.batched_two_ways, s.backward_deps),
        Expected(3072),
    ),
    "messages each way": (lambda: exchange(s.interleaved), Expected(14607, 1683)),
    "messages each way, dependencies": (
        lambda: exchange(s.batched_two_ways, s.few_backward_deps),
        Expected(6130, 1130),
    ),
    "messages one way": (lambda: one_way(s.batched), Expected(2592)),
    "messages one way, dependencies": (lambda: one_way(s.batched_in_order, s.few_backward_deps), Expected(1480, 320)),
    "ring": (lambda: ring(s.interleaved, barrier=False), Expected(74, 2)),
    "ring and barrier": (lambda: ring(s.batched_two_ways, barrier=True), Expected(584)),
    "dropped Works": (lambda: one_communicator(2, 2, s.with_drops, s.backward_deps), Expected(210)),
    "dropped Works of groups": (lambda: groups(2, s.with_drops, s.no_deps), Expected(698, 16)),
    "repeated waits": (lambda: one_communicator(2, 2, s.with_repeats, s.backward_deps), Expected(702)),
}


@pytest.mark.parametrize("name", sample(FAMILIES, 5))
def test_nothing_deadlocks_under_all_rules(name: str) -> None:
    """And what cannot complete deadlocks, so that the search is known to find deadlocks."""
    family, expected = FAMILIES[name]
    found = survey(family(), ALL_RULES)
    print(found)
    assert found.deadlock is None and found.num_escapes == 0
    assert (found.num_programs, found.num_impossible) == (expected.programs, expected.impossible)


@pytest.mark.parametrize("name", sample(["3 ranks, chain", "overlapping, 4 lanes", "messages one way"], 1))
def test_nothing_deadlocks_with_two_operations_posted_at_once(name: str) -> None:
    found = survey(FAMILIES[name][0](), Runtime(depth=2))
    assert found.deadlock is None and found.num_escapes == 0


# order differs, unified progress, chain, one lane a backend (False: one shared executor) -> deadlocks of all programs
TABLE = {
    (False, False, False, True): (132, 216),
    (False, False, False, False): (188, 216),
    (False, False, True, True): (188, 216),
    (False, False, True, False): (188, 216),
    (False, True, False, True): (0, 216),
    (False, True, True, True): (0, 216),
    (False, True, False, False): (0, 216),
    (False, True, True, False): (0, 216),
    (True, False, False, True): (396, 648),
    (True, False, False, False): (620, 648),
    (True, True, False, True): (0, 648),
    (True, True, False, False): (432, 648),
    (True, True, True, True): (432, 648),
    (True, True, True, False): (432, 648),
}


@pytest.mark.parametrize(("row", "expected"), TABLE.items())
def test_published_table(row: tuple[bool, bool, bool, bool], expected: tuple[int, int]) -> None:
    """The table of results in docs/design/mixing_rules.md."""
    order_differs, unified_progress, chained, lanes_share_nothing = row
    rules = Rules(one_issue_order=False, unified_progress=unified_progress, lanes_share_nothing=lanes_share_nothing)
    outcomes = [check(program, Runtime(rules)) for program in table(order_differs=order_differs, chained=chained)]
    assert (sum(outcome.deadlock is not None for outcome in outcomes), len(outcomes)) == expected


# switch -> capacity of a lane, family, what is expected of it
OFF: dict[str, tuple[str, int | None, Family, Expected]] = {
    "R1": ("one_issue_order", None, lambda: any_order(3, s.batched), Expected(864, 0, 504)),
    "R2 synchronous start": (
        "issue_never_blocks",
        None,
        lambda: one_communicator(2, 3, s.interleaved, s.no_deps),
        Expected(480, 0, 336),
    ),
    "R2 full lane": (
        "issue_never_blocks",
        1,
        lambda: one_communicator(2, 3, s.interleaved, s.no_deps),
        Expected(480, 0, 424),
    ),
    "R3": ("unified_progress", None, lambda: one_communicator(2, 3, s.interleaved, s.no_deps), Expected(480, 0, 199)),
    "R3 groups": ("unified_progress", None, lambda: groups(2, s.interleaved, s.no_deps), Expected(78, 2, 25)),
    "R4 groups": ("lanes_share_nothing", None, lambda: groups(2, s.interleaved, s.no_deps), Expected(78, 2, 16)),
    "R4 messages": ("lanes_share_nothing", None, lambda: ring(s.interleaved, barrier=False), Expected(74, 2, 20)),
    "R5": ("backward_deps", None, lambda: any_deps(2, s.interleaved), Expected(18, 24, 3)),
    "R6 order of waits": (
        "waits_in_any_order",
        None,
        lambda: twins((2, 1), s.interleaved, s.no_deps),
        Expected(1908, 162, 20),
    ),
    "R6 second wait": (
        "waits_repeat",
        None,
        lambda: one_communicator(2, 2, s.with_repeats, s.no_deps),
        Expected(182, 0, 170),
    ),
    "R6 dropped Work": (
        "drop_cancels_nothing",
        None,
        lambda: one_communicator(2, 2, s.with_drops, s.no_deps),
        Expected(56, 0, 34),
    ),
    "R7 lane": ("own_message_lane", None, lambda: ring(s.interleaved, barrier=False), Expected(74, 2, 20)),
    "R7 silent send": ("sends_drive", None, lambda: ring(s.interleaved, barrier=False), Expected(74, 2, 10)),
    "R7 overtaking": (
        "messages_overtake",
        None,
        lambda: one_way(s.batched_in_order, s.few_backward_deps),
        Expected(1480, 320, 16),
    ),
    "R8": ("equal_choice", None, lambda: any_choice(2, s.interleaved), Expected(72, 0, 54)),
}


def test_every_rule_can_be_switched_off() -> None:
    assert {switch for switch, *_ in OFF.values()} == set(RULE_OF_SWITCH)
    assert set(RULE_OF_SWITCH.values()) == {f"R{number}" for number in range(1, 9)}


@pytest.mark.parametrize(("switch", "capacity", "family", "expected"), OFF.values(), ids=OFF)
def test_without_one_rule_something_deadlocks(
    switch: str, capacity: int | None, family: Family, expected: Expected
) -> None:
    found = survey(family(), Runtime(Rules(**{switch: False}), capacity=capacity))
    print(found, found.program, *(found.deadlock or ()), sep="\n")
    assert found.deadlock and found.num_escapes == 0
    assert Expected(found.num_programs, found.num_impossible, found.num_deadlocks) == expected
    for program in family():
        assert is_legal(program) or broken_rules(program) == (switch,)
        if is_legal(program):
            assert (check(program, Runtime(capacity=capacity)).deadlock is None) == can_complete(program)
        else:
            with raises(Refused, names=switch):
                check(program)


@pytest.mark.parametrize(
    ("switch", "capacity", "family", "expected"), [pytest.param(*OFF[name], id=name) for name in sample(OFF, 4)]
)
def test_leaving_out_interleavings_changes_nothing(
    switch: str, capacity: int | None, family: Family, expected: Expected
) -> None:
    """The same verdict and the same length of the shortest way from the search of all interleavings."""
    runtime = Runtime(Rules(**{switch: False}), capacity=capacity)
    for program in family():
        few, every = check(program, runtime), check(program, runtime, reduced=False)
        assert few.num_states <= every.num_states
        assert (few.deadlock is None) == (every.deadlock is None)
        assert len(few.deadlock or ()) == len(every.deadlock or ())


@pytest.mark.parametrize("name", NAMES)
def test_counter_examples(name: str) -> None:
    """Each deadlocks without its rule; with it, it completes, or is refused if it breaks the rule itself."""
    (example,) = (each for each in counter_examples() if each.name == name)
    print(example.program, *example.deadlock, sep="\n")
    assert check(example.program, example.runtime).deadlock == example.deadlock
    assert can_complete(example.program)
    if example.legal:
        obedient = replace(example.runtime, rules=Rules())
        assert check(example.program, obedient).deadlock is None
    else:
        assert broken_rules(example.program) == (example.switch,)
    assert not any(operation.eager for operation in example.program.operations)
    assert len(set(example.program.communicators)) == len(example.program.communicators)


def test_counter_examples_cover_every_switch() -> None:
    assert {example.switch for example in counter_examples()} == set(RULE_OF_SWITCH)
    assert {example.rule for example in counter_examples() if not example.legal} == {"R1", "R5", "R8"}


# family -> how many deadlock when each lane has room for one operation
BOUNDED: dict[str, tuple[Family, int]] = {
    "one communicator": (lambda: one_communicator(2, 3, s.interleaved, s.no_deps), 0),
    "same members": (lambda: twins((2, 1), s.interleaved, s.no_deps), 18),
    "same members, 4 operations": (lambda: twins((2, 2), s.batched_two_ways, s.no_deps), 4),
    "groups": (lambda: groups(2, s.interleaved, s.no_deps), 0),
}


@pytest.mark.parametrize(("family", "expected"), BOUNDED.values(), ids=BOUNDED)
def test_bounded_lanes_need_one_order_over_all_communicators(family: Family, expected: int) -> None:
    """R1 to R8 are not enough where a lane can be full: the limit of a lane must be out of reach, or the order one."""
    bounded = [(program, check(program, Runtime(capacity=1)).deadlock) for program in family() if can_complete(program)]
    stuck = [program for program, deadlock in bounded if deadlock]
    assert len(stuck) == expected
    assert not any(has_one_order_over_all(program) for program in stuck)


def test_dependencies_across_communicators_need_one_order_over_both() -> None:
    """R5 speaks of one issue sequence; where each communicator has its own, dependencies between them can deadlock."""
    family = twins((2, 1), s.batched, s.few_backward_deps, across=True)
    programs = [program for program in family if can_complete(program)]
    stuck = [program for program in programs if check(program).deadlock]
    assert (len(stuck), len(programs)) == (36, 7110)
    assert not any(has_one_order_over_all(program) for program in stuck)


@pytest.mark.parametrize("eager", [True, False])
def test_sends_that_both_come_first_need_room(eager: bool) -> None:
    """Issue + wait alone completes two blocking sends to each other only where the message needs no receive.

    Hence the second half of R7: a rank whose send is stuck makes the room (tests/conformance/test_point_to_point.py).
    """
    operations = tuple(
        Operation(kind, peer=peer, eager=eager and kind == "send")  # type: ignore[arg-type]
        for kind, peer in (("send", 1), ("recv", 1), ("send", 0), ("recv", 0))
    )
    both = tuple(
        Script((("issue", send), ("wait", send), ("issue", receive), ("wait", receive)))
        for send, receive in ((0, 1), (2, 3))
    )
    program = Program(((0, 1),), operations, both)
    assert (check(program).deadlock is None) == can_complete(program) == eager
