"""What each rank can do at each step of its script, worked out before the search."""

from __future__ import annotations

from typing import NamedTuple

from .program import Lane, Program, Step
from .rules import Runtime

_UNLIMITED = 1 << 30


class Entry(NamedTuple):
    """An operation in a queue. Sets of (rank, operation) are bit masks; complete means: all of `needs` is posted."""

    bit: int
    needs: int
    deps: int
    driven: bool


Queue = tuple[tuple[Entry, ...], int]  # in the order of issue; how many may be in flight


class Stand(NamedTuple):
    """What a rank can do at one step of its script."""

    step: Step
    needs: int  # the step can be left when all of these are posted ...
    peers: tuple[tuple[int, int], ...]  # ... and these ranks have come to these places ...
    lane: tuple[Entry, ...]  # ... and fewer than capacity of these are incomplete
    queues: tuple[Queue, ...]  # what it drives meanwhile

    @property
    def drives(self) -> int:
        """All that can be posted here, sooner or later."""
        return sum(entry.bit for entries, _ in self.queues for entry in entries if entry.driven)


class Compiler:
    """Turns a program and a runtime into tables of stands."""

    def __init__(self, program: Program, runtime: Runtime) -> None:
        self.program, self.runtime, self.rules = program, runtime, runtime.rules
        self.lanes = [
            {op: program.lane(rank, op) for op in script.issued} for rank, script in enumerate(program.scripts)
        ]
        self.never = 1 << (program.num_ranks * len(program.operations))  # a bit that nobody posts
        self.needs = [self._needs(op) for op in range(len(program.operations))]
        self.blocking_issue = runtime.capacity is not None or not self.rules.issue_never_blocks

    def bit(self, rank: int, op: int) -> int:
        return 1 << (rank * len(self.program.operations) + op)

    def _needs(self, op: int) -> int:
        parties = self.program.parties(op)
        mask = sum(self.bit(rank, end) for rank, end in parties)
        # on different lanes they never meet
        meet = len({self.lanes[rank][end] for rank, end in parties}) == 1
        return mask if meet else mask | self.never

    def steps(self, rank: int) -> tuple[Step, ...]:
        """The script, and finalize."""
        script = self.program.scripts[rank]
        if not self.rules.drop_cancels_nothing:
            return script.steps
        dropped = [op for op in script.issued if op not in script.waited]
        return script.steps + tuple(("wait", op) for op in dropped)

    def stands(self, rank: int) -> list[Stand]:
        steps = self.steps(rank)
        return [self._stand(rank, steps[:place], step) for place, step in enumerate(steps)]

    def _stand(self, rank: int, past: tuple[Step, ...], step: Step) -> Stand:
        action, op = step
        if action == "issue" and not self.blocking_issue:
            return Stand(step, 0, (), (), ())
        script = self.program.scripts[rank]
        issued = [each for what, each in past if what == "issue"]
        if not self.rules.drop_cancels_nothing:
            issued = [each for each in issued if each in script.waited]
        lane = self.lanes[rank][op]
        if action == "wait":
            silent = not self.rules.sends_drive and self.program.operations[op].kind == "send"
            queues = self._queues(rank, [op] if silent else self._driven(rank, issued, lane), issued)
            return Stand(step, self._wait_needs(past, issued, step), (), (), queues)
        in_lane = tuple(self._entry(rank, each, driven=True) for each in issued if self.lanes[rank][each] == lane)
        if self.runtime.capacity is not None:
            driven = self._driven(rank, issued, lane) if self.rules.issue_never_blocks else []
            queues = self._queues(rank, driven, issued)
            return Stand(step, 0, (), in_lane, queues)
        peers: tuple[tuple[int, int], ...] = ()
        if not self.rules.issue_never_blocks:
            peers = tuple(
                (other, self.steps(other).index(("issue", end)))
                for other, end in self.program.parties(op)
                if other != rank
            )
        return Stand(step, 0, peers, (), ())

    def _wait_needs(self, past: tuple[Step, ...], issued: list[int], step: Step) -> int:
        op = step[1]
        needs = self.needs[op]
        if not self.rules.waits_in_any_order:
            for before in issued[: issued.index(op)]:
                needs |= self.needs[before]
        if not self.rules.waits_repeat and step in past:
            needs |= self.never
        return needs

    def _entry(self, rank: int, op: int, *, driven: bool) -> Entry:
        deps = 0
        for before in self.program.scripts[rank].deps_of(op):
            deps |= self.needs[before]
        return Entry(self.bit(rank, op), self.needs[op], deps, driven)

    def _driven(self, rank: int, issued: list[int], lane: Lane) -> list[int]:
        """What a step that blocks on a lane drives."""
        if self.rules.unified_progress:
            return issued
        return [op for op in issued if self.lanes[rank][op] == lane]

    def _queues(self, rank: int, driven: list[int], issued: list[int]) -> tuple[Queue, ...]:
        """The queues with something in them that is driven."""
        queues: dict[object, list[Entry]] = {}
        depths: dict[object, int] = {}
        for op in issued:
            key, depth = self._queue_of(rank, op)
            queues.setdefault(key, []).append(self._entry(rank, op, driven=op in driven))
            depths[key] = depth
        return tuple(
            (tuple(entries), depths[key]) for key, entries in queues.items() if any(entry.driven for entry in entries)
        )

    def _queue_of(self, rank: int, op: int) -> tuple[object, int]:
        """What an operation stands in line with, and how many of the line may be in flight."""
        lane = self.lanes[rank][op]
        if not self.rules.lanes_share_nothing:
            return "executor", self.runtime.depth
        if lane.kind == "collective":
            return lane, self.runtime.depth
        if not self.rules.own_message_lane:
            return Lane(lane.communicator, lane.backend, "collective"), self.runtime.depth
        if not self.rules.messages_overtake:
            return lane, _UNLIMITED
        return self.program.match_of(op), _UNLIMITED
