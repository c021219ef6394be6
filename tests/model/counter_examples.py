"""The smallest programs that deadlock without one of the rules, as plain data that a real runtime can replay.

Operations are numbered. A collective is ("collective", members, backend); of a message each end is an operation of its
own, ("send", peer, tag) and ("recv", peer, tag), issued by the other rank. A send is to be long enough to need its
receive. No two communicators have the same members. What a rank issues and never waits for it drops at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from .enumerate import any_choice, any_deps, any_order, exchange, groups, one_communicator, one_way, ring
from .program import Operation, Program, Script, Step, can_complete
from .rules import RULE_OF_SWITCH, Rules, Runtime, is_legal
from .scripts import batched, batched_in_order, few_backward_deps, interleaved, no_deps, with_drops, with_repeats
from .semantics import check

PlainOperation = tuple[str, tuple[int, ...], int] | tuple[str, int, int]


@dataclass(frozen=True)
class CounterExample:
    """A program that completes under all rules and deadlocks without one.

    Args:
        switch: the field of Rules that is off, of rule `rule`.
        legal: whether the program obeys the rules itself; one that does not is to be refused or reported, not run.
        scripts: a rank's steps, ("issue", operation) and ("wait", operation).
        deps: a rank's pairs (operation, operation that must be complete before it starts).
        choices: a rank's pairs (operation, backend that this rank puts it on instead).
        deadlock: a shortest way into it without the rule, as text.
        program: the same for the checker, and the runtime without the rule.
    """

    name: str
    rule: str
    switch: str
    legal: bool
    num_ranks: int
    operations: tuple[PlainOperation, ...]
    scripts: tuple[tuple[Step, ...], ...]
    deps: tuple[tuple[tuple[int, int], ...], ...]
    choices: tuple[tuple[tuple[int, int], ...], ...]
    deadlock: tuple[str, ...]
    program: Program
    runtime: Runtime


def _differing_rings() -> Iterator[Program]:
    """Rings in which the three ranks do three different things."""
    return (program for program in ring(interleaved, barrier=False) if len({_form(s) for s in program.scripts}) == 3)


def _form(script: Script) -> tuple[tuple[str, int], ...]:
    return tuple((action, op // 3) for action, op in script.steps)


_Source = tuple[str, str, int | None, Callable[[], Iterable[Program]]]  # name, switch, capacity, where to look
_SOURCES: tuple[_Source, ...] = (
    ("other order", "one_issue_order", None, lambda: any_order(2, interleaved)),
    ("other order, all issued first", "one_issue_order", None, lambda: any_order(2, batched)),
    ("synchronous start", "issue_never_blocks", None, lambda: one_communicator(2, 2, interleaved, no_deps)),
    ("synchronous start, messages", "issue_never_blocks", None, lambda: ring(interleaved, barrier=False)),
    ("full lane", "issue_never_blocks", 1, lambda: one_communicator(2, 2, interleaved, no_deps)),
    ("full lane of three ranks", "issue_never_blocks", 2, lambda: one_communicator(3, 3, interleaved, no_deps)),
    ("crossed waits", "unified_progress", None, lambda: one_communicator(2, 2, interleaved, no_deps)),
    ("crossed waits, all issued first", "unified_progress", None, lambda: one_communicator(2, 2, batched, no_deps)),
    ("crossed waits of three ranks", "unified_progress", None, lambda: one_communicator(3, 2, batched, no_deps)),
    ("crossed waits of groups", "unified_progress", None, lambda: _on([0, 1], groups(2, batched, no_deps))),
    ("crossed groups", "lanes_share_nothing", None, lambda: groups(2, interleaved, no_deps)),
    ("circle of groups", "lanes_share_nothing", None, lambda: _on([1, 2, 3], groups(3, batched, no_deps))),
    ("collective and messages, one executor", "lanes_share_nothing", None, lambda: exchange(interleaved)),
    ("forward dependency", "backward_deps", None, lambda: any_deps(2, batched)),
    ("waits out of order", "waits_in_any_order", None, lambda: one_way(interleaved)),
    ("second wait", "waits_repeat", None, lambda: one_communicator(2, 1, with_repeats, no_deps)),
    ("second wait later", "waits_repeat", None, lambda: _longer(one_communicator(2, 2, with_repeats, no_deps), 9)),
    ("dropped", "drop_cancels_nothing", None, lambda: one_communicator(2, 1, with_drops, no_deps)),
    ("dropped in a group", "drop_cancels_nothing", None, lambda: _on([0, 1], groups(2, with_drops, no_deps))),
    ("messages behind collectives", "own_message_lane", None, lambda: exchange(interleaved)),
    ("messages behind messages", "own_message_lane", None, _differing_rings),
    ("silent send", "sends_drive", None, lambda: exchange(interleaved)),
    ("silent send in a ring", "sends_drive", None, _differing_rings),
    ("message behind a dependency", "messages_overtake", None, lambda: one_way(batched_in_order, few_backward_deps)),
    ("other choice", "equal_choice", None, lambda: any_choice(1, batched)),
    ("crossed choices", "equal_choice", None, lambda: _crossed(any_choice(2, batched))),
)


NAMES = tuple(name for name, *_ in _SOURCES)


def _on(communicators: list[int], programs: Iterable[Program]) -> Iterator[Program]:
    """Only those whose operations are on these communicators: 0 is the world, 1 to 3 are the pairs."""
    return (program for program in programs if [op.communicator for op in program.operations] == communicators)


def _longer(programs: Iterable[Program], num_steps: int) -> Iterator[Program]:
    return (program for program in programs if sum(len(script.steps) for script in program.scripts) >= num_steps)


def _crossed(programs: Iterable[Program]) -> Iterator[Program]:
    """Only those in which two operations change places."""
    return (
        program
        for program in programs
        if [operation.backend for operation in program.operations] == [0, 1]
        and program.scripts[1].choices == ((0, 1), (1, 0))
    )


@cache
def counter_examples() -> tuple[CounterExample, ...]:
    """One or more for every switch of every rule, the same in every run.

    Each is the first of the shortest programs of a family.
    """
    return tuple(_first(*source) for source in _SOURCES)


def _first(name: str, switch: str, capacity: int | None, family: Callable[[], Iterable[Program]]) -> CounterExample:
    runtime = Runtime(Rules(**{switch: False}), capacity=capacity)
    for program in sorted(family(), key=lambda each: sum(len(script.steps) for script in each.scripts)):
        deadlock = check(program, runtime).deadlock
        if deadlock and can_complete(program):
            break
    else:
        raise LookupError(f"{name}: no program of the family deadlocks")
    return CounterExample(
        name=name,
        rule=RULE_OF_SWITCH[switch],
        switch=switch,
        legal=is_legal(program),
        num_ranks=program.num_ranks,
        operations=tuple(_plain(program, operation) for operation in program.operations),
        scripts=tuple(script.steps for script in program.scripts),
        deps=tuple(script.deps for script in program.scripts),
        choices=tuple(script.choices for script in program.scripts),
        deadlock=deadlock,
        program=program,
        runtime=runtime,
    )


def _plain(program: Program, operation: Operation) -> PlainOperation:
    if operation.kind == "collective":
        return "collective", program.communicators[operation.communicator], operation.backend
    return operation.kind, operation.peer, operation.tag
