"""The rules of mixing R1 to R8 (docs/design/mixing_rules.md) as switches.

R1, R5 and R8 are duties of programs, the others of the runtime. A rule that can be broken in several ways has a switch
for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from .program import Program, has_circle


@dataclass(frozen=True)
class Rules:
    """Which rules hold; what a switch does when it is off is told in its comment."""

    one_issue_order: bool = True  # R1: members may issue the operations of a communicator in different orders
    issue_never_blocks: bool = True  # R2: issue drives nothing while it blocks: see Runtime.capacity
    unified_progress: bool = True  # R3: a wait drives only the lane it waits for
    lanes_share_nothing: bool = True  # R4: one in-order executor carries all lanes of a rank
    backward_deps: bool = True  # R5: a dependency may point to a later operation
    waits_in_any_order: bool = True  # R6: a wait returns only after everything issued before its operation
    waits_repeat: bool = True  # R6: the first wait uses up the handle, a second one never returns
    drop_cancels_nothing: bool = True  # R6: an operation whose Work is dropped is never posted
    own_message_lane: bool = True  # R7: messages stand in line with the collectives of their backend
    sends_drive: bool = True  # R7: waiting for a send drives nothing else
    messages_overtake: bool = True  # R7: a message that cannot start yet holds up those with other tags and peers
    equal_choice: bool = True  # R8: members may put one operation on different backends


RULE_OF_SWITCH = {
    "one_issue_order": "R1",
    "issue_never_blocks": "R2",
    "unified_progress": "R3",
    "lanes_share_nothing": "R4",
    "backward_deps": "R5",
    "waits_in_any_order": "R6",
    "waits_repeat": "R6",
    "drop_cancels_nothing": "R6",
    "own_message_lane": "R7",
    "sends_drive": "R7",
    "messages_overtake": "R7",
    "equal_choice": "R8",
}


@dataclass(frozen=True)
class Runtime:
    """A runtime that obeys these rules.

    Args:
        depth: how many operations of a collective lane may be posted and incomplete (messages: any number).
        capacity: how many of a lane may be issued and incomplete; None is any number. A full lane makes issue drive
            everything until there is room. With R2 off it drives nothing; and with R2 off and no capacity each issue
            blocks until all others that take part have come to theirs.
    """

    rules: Rules = Rules()
    depth: int = 1
    capacity: int | None = None


def _has_one_issue_order(program: Program) -> bool:
    for communicator, members in enumerate(program.communicators):
        orders = {
            tuple(
                op
                for op in program.scripts[rank].issued
                if program.operations[op].kind == "collective" and program.operations[op].communicator == communicator
            )
            for rank in members
        }
        if len(orders) > 1:
            return False
    return True


def _has_backward_deps(program: Program) -> bool:
    return all(
        script.issued.index(before) < script.issued.index(after)
        for script in program.scripts
        for after, before in script.deps
    )


def _has_equal_choice(program: Program) -> bool:
    return all(
        len({program.lane(rank, end) for rank, end in program.parties(op)}) == 1
        for op in range(len(program.operations))
    )


_DUTIES = {
    "one_issue_order": _has_one_issue_order,
    "backward_deps": _has_backward_deps,
    "equal_choice": _has_equal_choice,
}


def broken_rules(program: Program) -> tuple[str, ...]:
    """The duties that a program neglects."""
    return tuple(switch for switch, holds in _DUTIES.items() if not holds(program))


def is_legal(program: Program) -> bool:
    return not broken_rules(program)


def has_one_order_over_all(program: Program) -> bool:
    """Whether one order of all operations agrees with the order of issue of every rank: more than R1 demands."""
    before: list[set[int]] = [set() for _ in program.operations]
    for script in program.scripts:
        for place, op in enumerate(script.issued):
            before[op].update(script.issued[:place])
    return not has_circle(before)
