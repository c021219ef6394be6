"""What a runtime does with a program: a search over all interleavings of what ranks and their progress can do.

A state is where each rank stands in its script and what it has posted; all else follows:

    issued:    the rank is past the issue step; the operation is in a queue
    posted:    in order of the queue, at most `depth` incomplete ones at a time, and only when its dependencies are
               complete; happens only while the rank stands at a step that drives that queue (nothing runs by itself)
    complete:  all members have posted it; of a message: sender and receiver have
    wait:      stands until its operation is complete

    finalize:  the end of a script; it waits for what was dropped, in the order of issue

Ranks interleave in every way, and a rank may leave a step before it has driven all it could. Each move adds one posted
operation or one step, so all ways to a state are equally long, and what is found first is as short as can be.

Moves that commute with all others are taken first, alone (persistent sets: Godefroid, Partial-Order Methods for the
Verification of Concurrent Systems, 1996). This loses no deadlock. No move of another rank ever disables a move, nor is
disabled by one, so only moves of the same rank matter:

    - an issue that cannot block is its rank's only way on
    - before its rank has posted what the step waits for, it cannot leave; its other posts stay possible meanwhile
    - once nothing is left to post at a step, leaving it is all its rank can do

A rank is one thread: that waits work from any thread (R6) is not modelled.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from .program import Program
from .rules import Runtime, broken_rules
from .stands import Compiler, Stand

_State = tuple[tuple[int, ...], int]  # each rank's place in its script; what is posted
ALL_RULES = Runtime()


@dataclass(frozen=True)
class Outcome:
    """The end of a search; `deadlock` is a shortest way into one, a line a step, and then where each rank stands."""

    num_states: int
    deadlock: tuple[str, ...] | None


class Refused(Exception):
    """The program neglects a duty that the rules of this runtime demand."""


class _Search:
    def __init__(self, program: Program, runtime: Runtime, *, reduced: bool) -> None:
        compiler = Compiler(program, runtime)
        self.stands = [compiler.stands(rank) for rank in range(program.num_ranks)]
        self.ends = tuple(len(stands) for stands in self.stands)
        self.capacity = runtime.capacity
        self.bit, self.num_operations = compiler.bit, len(program.operations)
        self.skips = not compiler.blocking_issue
        self.reduced = reduced
        self.drives = [[stand.drives for stand in stands] for stands in self.stands]

    def arrive(self, rank: int, place: int) -> int:
        """The next step that can block, from `place` on."""
        stands = self.stands[rank]
        while self.skips and place < len(stands) and stands[place].step[0] == "issue":
            place += 1
        return place

    def can_leave(self, stand: Stand, places: tuple[int, ...], posted: int) -> bool:
        if posted & stand.needs != stand.needs:
            return False
        if any(places[rank] < place for rank, place in stand.peers):
            return False
        if self.capacity is None or stand.step[0] == "wait":
            return True
        return sum(posted & entry.needs != entry.needs for entry in stand.lane) < self.capacity

    def successors(self, state: _State) -> list[_State]:
        """The states after each possible move; when reduced, after one move where one is enough."""
        places, posted = state
        found = []
        for rank, stands in enumerate(self.stands):
            here = places[rank]
            if here == len(stands):
                continue
            stand = stands[here]
            bits = _postable(stand, posted)
            for bit in bits:
                found.append((places, posted | bit))
                if self.reduced and bit & stand.needs:
                    return found[-1:]
            if self.can_leave(stand, places, posted):
                place = self.arrive(rank, here + 1)
                found.append((places[:rank] + (place,) + places[rank + 1 :], posted))
                if self.reduced and not self.drives[rank][here] & ~posted:
                    return found[-1:]
        return found

    def run(self) -> Outcome:
        start = (tuple(self.arrive(rank, 0) for rank in range(len(self.stands))), 0)
        origin: dict[_State, _State | None] = {start: None}
        todo = deque([start])
        while todo:
            state = todo.popleft()
            successors = self.successors(state)
            if not successors and state[0] != self.ends:
                return Outcome(len(origin), self.trace(origin, state))
            for each in successors:
                if each not in origin:
                    origin[each] = state
                    todo.append(each)
        return Outcome(len(origin), None)

    def trace(self, origin: dict[_State, _State | None], state: _State | None) -> tuple[str, ...]:
        states = []
        while state is not None:
            states.append(state)
            state = origin[state]
        states.append((tuple(0 for _ in self.stands), 0))
        states.reverse()
        lines = [line for before, after in pairwise(states) for line in self.lines(before, after)]
        places = states[-1][0]
        for rank, stands in enumerate(self.stands):
            where = "finished" if places[rank] == len(stands) else "stuck in {} {}".format(*stands[places[rank]].step)
            lines.append(f"rank {rank}: {where}")
        return tuple(lines)

    def lines(self, before: _State, after: _State) -> list[str]:
        lines = []
        for rank, stands in enumerate(self.stands):
            for stand in stands[before[0][rank] : after[0][rank]]:
                lines.append("rank {}: {} {}".format(rank, *stand.step))
            for op in range(self.num_operations):
                if (after[1] & ~before[1]) & self.bit(rank, op):
                    lines.append(f"rank {rank}: posts {op}")
        return lines


def _postable(stand: Stand, posted: int) -> list[int]:
    """What a rank at this stand can post next: at most one operation a queue."""
    bits = []
    for entries, depth in stand.queues:
        in_flight = 0
        for entry in entries:
            if not posted & entry.bit:
                if entry.driven and posted & entry.deps == entry.deps:
                    bits.append(entry.bit)
                break
            if posted & entry.needs != entry.needs:
                in_flight += 1
                if in_flight == depth:
                    break
    return bits


def check(program: Program, runtime: Runtime = ALL_RULES, *, reduced: bool = True) -> Outcome:
    """Searches all interleavings.

    Args:
        reduced: leave out interleavings that differ only in moves that commute.

    Raises:
        Refused: the program breaks a rule that this runtime relies on.
    """
    demanded = [switch for switch in broken_rules(program) if getattr(runtime.rules, switch)]
    if demanded:
        raise Refused(", ".join(demanded))
    return _Search(program, runtime, reduced=reduced).run()
