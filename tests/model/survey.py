"""What the checker says of a whole family of programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .program import Program, can_complete
from .rules import Runtime
from .semantics import check


@dataclass(frozen=True)
class Survey:
    """Numbers of programs; those that no runtime can complete are counted apart.

    Args:
        num_states: of all searches together.
        num_deadlocks: among the programs that can complete.
        num_escapes: programs that cannot complete and yet did not deadlock (a fault of the model).
        program: the smallest that can complete and deadlocks, of those the one with the shortest way.
        deadlock: that way.
    """

    num_programs: int
    num_impossible: int
    num_states: int
    num_deadlocks: int
    num_escapes: int
    program: Program | None
    deadlock: tuple[str, ...] | None

    def __str__(self) -> str:
        return (
            f"{self.num_programs} programs, {self.num_states} states, {self.num_deadlocks} deadlocks"
            f" ({self.num_impossible} more programs cannot complete at all)"
        )


def survey(programs: Iterable[Program], runtime: Runtime) -> Survey:
    num_programs = num_impossible = num_states = num_deadlocks = num_escapes = 0
    smallest: tuple[tuple[int, int], Program, tuple[str, ...]] | None = None
    for program in programs:
        outcome = check(program, runtime)
        num_states += outcome.num_states
        if not can_complete(program):
            num_impossible += 1
            num_escapes += outcome.deadlock is None
            continue
        num_programs += 1
        if outcome.deadlock is None:
            continue
        num_deadlocks += 1
        size = (sum(len(script.steps) for script in program.scripts), len(outcome.deadlock))
        if smallest is None or size < smallest[0]:
            smallest = (size, program, outcome.deadlock)
    example, deadlock = (smallest[1], smallest[2]) if smallest else (None, None)
    return Survey(num_programs, num_impossible, num_states, num_deadlocks, num_escapes, example, deadlock)
