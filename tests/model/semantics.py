"""What a runtime does with a program: a search over all interleavings of what ranks and their progress can do.

A state is where each rank stands in its script and what it has posted; all else follows:

    issued:    the rank is past the issue step; the operation is in a queue
    posted:    in order of the queue, at most `depth` incomplete ones at a time, and only when its dependencies are
               complete; happens only while the rank stands at a step that drives that queue (nothing runs by itself)
    complete:  all members have posted it; of a message: sender and receiver have
    wait:      stands until its operation is complete

A rank leaves a step and posts an operation in any order with the steps of all other ranks. Steps that issue without
blocking are taken at once: they are the rank's only way on, no other rank sees them, and nothing can forbid them. The
end of a script is finalize: it waits for what was dropped, in the order of issue.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from .program import Lane, Program, Script, Step
from .rules import Rules, broken_rules


@dataclass(frozen=True)
class Runtime:
    """Args:
    depth: how many operations of a collective lane may be posted and incomplete (messages: any number).
    capacity: how many may be issued and incomplete; None is any number. A full lane makes issue drive everything
        until there is room. With R2 off it drives nothing, and without a capacity each issue blocks until all
        others that take part have come to theirs.
    """

    rules: Rules = Rules()
    depth: int = 1
    capacity: int | None = None


@dataclass(frozen=True)
class Outcome:
    """The end of a search; the deadlock is one of the shortest ways into one, as lines of text."""

    num_states: int
    deadlock: tuple[str, ...] | None


class Refused(Exception):
    """The program neglects a duty that the rules of this runtime demand."""


class _Entry(NamedTuple):
    """An operation in a queue. Sets of (rank, operation) are bit masks; complete means: all of `needs` is posted."""

    bit: int
    needs: int
    deps: int
    driven: bool


class _Stand(NamedTuple):
    """What a rank can do at one step of its script."""

    step: Step
    needs: int  # the step can be left when all of these are posted ...
    peers: tuple[tuple[int, int], ...]  # ... and these ranks have come to these places ...
    lane: tuple[_Entry, ...]  # ... and fewer than capacity of these are incomplete
    queues: tuple[tuple[tuple[_Entry, ...], int], ...]  # what it drives meanwhile, each with its depth


_State = tuple[tuple[int, ...], int]
_UNLIMITED = 1 << 30


class _Compiler:
    """Turns a program and a runtime into tables of stands."""

    def __init__(self, program: Program, runtime: Runtime) -> None:
        self.program, self.runtime, self.rules = program, runtime, runtime.rules
        self.never = 1 << (program.num_ranks * len(program.operations))  # a bit that nobody posts
        self.needs = [self._needs(op) for op in range(len(program.operations))]
        self.blocking_issue = runtime.capacity is not None or not self.rules.issue_never_blocks

    def bit(self, rank: int, op: int) -> int:
        return 1 << (rank * len(self.program.operations) + op)

    def _needs(self, op: int) -> int:
        parties = self.program.parties(op)
        mask = sum(self.bit(rank, end) for rank, end in parties)
        meet = len({self.program.lane(rank, end) for rank, end in parties}) == 1
        return mask if meet else mask | self.never

    def steps(self, rank: int) -> tuple[Step, ...]:
        script = self.program.scripts[rank]
        dropped = [op for op in script.issued if op not in script.waited]
        if not self.rules.drop_cancels_nothing:
            return script.steps
        return script.steps + tuple(("wait", op) for op in dropped)

    def stands(self, rank: int) -> list[_Stand]:
        steps = self.steps(rank)
        return [self._stand(rank, steps[:place], step) for place, step in enumerate(steps)]

    def _stand(self, rank: int, past: tuple[Step, ...], step: Step) -> _Stand:
        action, op = step
        script = self.program.scripts[rank]
        issued = [each for what, each in past if what == "issue"]
        if not self.rules.drop_cancels_nothing:
            issued = [each for each in issued if each in script.waited]
        lane = self.program.lane(rank, op)
        if action == "wait":
            queues = self._queues(rank, script, issued, lane, op)
            return _Stand(step, self._wait_needs(past, issued, step), (), (), queues)
        in_lane = tuple(
            self._entry(rank, script, each, True) for each in issued if self.program.lane(rank, each) == lane
        )
        if self.runtime.capacity is not None:
            queues = self._queues(rank, script, issued, lane, op) if self.rules.issue_never_blocks else ()
            return _Stand(step, 0, (), in_lane, queues)
        peers = ()
        if not self.rules.issue_never_blocks:
            peers = tuple(
                (other, self.steps(other).index(("issue", end)))
                for other, end in self.program.parties(op)
                if other != rank
            )
        return _Stand(step, 0, peers, (), ())

    def _wait_needs(self, past: tuple[Step, ...], issued: list[int], step: Step) -> int:
        op = step[1]
        needs = self.needs[op]
        if not self.rules.waits_in_any_order:
            for before in issued[: issued.index(op)]:
                needs |= self.needs[before]
        if not self.rules.waits_repeat and step in past:
            needs |= self.never
        return needs

    def _entry(self, rank: int, script: Script, op: int, driven: bool) -> _Entry:
        deps = 0
        for before in script.deps_of(op):
            deps |= self.needs[before]
        return _Entry(self.bit(rank, op), self.needs[op], deps, driven)

    def _queues(
        self, rank: int, script: Script, issued: list[int], lane: Lane, op: int
    ) -> tuple[tuple[tuple[_Entry, ...], int], ...]:
        silent = not self.rules.sends_drive and self.program.operations[op].kind == "send"
        queues: dict[object, list[_Entry]] = {}
        depths: dict[object, int] = {}
        for each in issued:
            own = self.program.lane(rank, each)
            driven = each == op if silent else self.rules.unified_progress or own == lane
            key, depths_key = self._queue_of(own, each)
            queues.setdefault(key, []).append(self._entry(rank, script, each, driven))
            depths[key] = depths_key
        return tuple(
            (tuple(entries), depths[key]) for key, entries in queues.items() if any(entry.driven for entry in entries)
        )

    def _queue_of(self, lane: Lane, op: int) -> tuple[object, int]:
        """What an operation stands in line with, and how many of the line may be in flight."""
        if not self.rules.lanes_share_nothing:
            return "executor", self.runtime.depth
        if lane.kind == "collective":
            return lane, self.runtime.depth
        if not self.rules.own_message_lane:
            return Lane(lane.communicator, lane.backend, "collective"), self.runtime.depth
        if not self.rules.messages_overtake:
            return lane, _UNLIMITED
        operation = self.program.operations[op]
        return (lane, operation.kind, operation.peer, operation.tag), _UNLIMITED


class _Search:
    def __init__(self, program: Program, runtime: Runtime) -> None:
        compiler = _Compiler(program, runtime)
        self.stands = [compiler.stands(rank) for rank in range(program.num_ranks)]
        self.ends = tuple(len(stands) for stands in self.stands)
        self.capacity = runtime.capacity
        self.bit, self.num_operations = compiler.bit, len(program.operations)
        self.skips = not compiler.blocking_issue

    def arrive(self, rank: int, place: int) -> int:
        """The next step that can block, from `place` on."""
        stands = self.stands[rank]
        while self.skips and place < len(stands) and stands[place].step[0] == "issue":
            place += 1
        return place

    def can_leave(self, stand: _Stand, places: tuple[int, ...], posted: int) -> bool:
        if posted & stand.needs != stand.needs:
            return False
        if any(places[rank] < place for rank, place in stand.peers):
            return False
        if self.capacity is None or stand.step[0] == "wait":
            return True
        return sum(posted & entry.needs != entry.needs for entry in stand.lane) < self.capacity

    def successors(self, state: _State) -> list[_State]:
        places, posted = state
        found = []
        for rank, stands in enumerate(self.stands):
            if places[rank] == len(stands):
                continue
            stand = stands[places[rank]]
            for bit in _postable(stand, posted):
                found.append((places, posted | bit))
            if self.can_leave(stand, places, posted):
                place = self.arrive(rank, places[rank] + 1)
                found.append((places[:rank] + (place,) + places[rank + 1 :], posted))
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
        lines = [line for before, after in zip(states, states[1:], strict=False) for line in self.lines(before, after)]
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


def _postable(stand: _Stand, posted: int) -> list[int]:
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


def check(program: Program, runtime: Runtime = Runtime()) -> Outcome:  # noqa: B008 (frozen)
    """Searches all interleavings.

    Raises:
        Refused: the program breaks a rule that this runtime relies on.
    """
    demanded = [switch for switch in broken_rules(program) if getattr(runtime.rules, switch)]
    if demanded:
        raise Refused(", ".join(demanded))
    return _Search(program, runtime).run()
