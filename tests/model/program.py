"""A parallel program as the checker sees it: who issues what, on which lane, and who waits for what, when.

An operation that a rank issues and never waits for is one whose Work that rank drops at once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Step = tuple[Literal["issue", "wait"], int]  # what a rank does, and to which operation


@dataclass(frozen=True)
class Lane:
    """An in-order queue with its own match space."""

    communicator: int
    backend: int
    kind: Literal["collective", "point_to_point"]


@dataclass(frozen=True)
class Operation:
    """A collective of all members of a communicator, or one end of a message: the rank that issues it is the other.

    Args:
        eager: a send that needs no posted receive, because there is room for its message.
    """

    kind: Literal["collective", "send", "recv"]
    communicator: int = 0
    backend: int = 0
    peer: int = -1
    tag: int = 0
    eager: bool = False


@dataclass(frozen=True)
class Script:
    """What one rank does, in order.

    Args:
        deps: pairs (operation, operation that must be complete before the first is posted).
        choices: pairs (operation, backend that this rank alone puts it on).
    """

    steps: tuple[Step, ...]
    deps: tuple[tuple[int, int], ...] = ()
    choices: tuple[tuple[int, int], ...] = ()

    @cached_property
    def issued(self) -> tuple[int, ...]:
        return tuple(op for action, op in self.steps if action == "issue")

    @cached_property
    def waited(self) -> frozenset[int]:
        return frozenset(op for action, op in self.steps if action == "wait")

    def deps_of(self, op: int) -> tuple[int, ...]:
        return tuple(before for after, before in self.deps if after == op)

    def waited_before_issue(self, op: int) -> tuple[int, ...]:
        steps = self.steps[: self.steps.index(("issue", op))]
        return tuple(each for action, each in steps if action == "wait")


@dataclass(frozen=True)
class Program:
    """One script a rank, over shared operations and communicators (tuples of member ranks)."""

    communicators: tuple[tuple[int, ...], ...]
    operations: tuple[Operation, ...]
    scripts: tuple[Script, ...]

    @property
    def num_ranks(self) -> int:
        return len(self.scripts)

    def lane(self, rank: int, op: int) -> Lane:
        """The lane that a rank puts an operation on."""
        operation = self.operations[op]
        backend = dict(self.scripts[rank].choices).get(op, operation.backend)
        kind: Literal["collective", "point_to_point"] = (
            "collective" if operation.kind == "collective" else "point_to_point"
        )
        return Lane(operation.communicator, backend, kind)

    @cached_property
    def _partners(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Both ends of every message: the k-th send of a sender, receiver and tag matches the k-th receive."""
        ends: dict[tuple[int, int, int, int], dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        for rank, script in enumerate(self.scripts):
            for op in script.issued:
                end = self.operations[op]
                if end.kind != "collective":
                    way = (rank, end.peer) if end.kind == "send" else (end.peer, rank)
                    ends[(end.communicator, *way, end.tag)][end.kind].append((rank, op))
        pairs = [pair for end in ends.values() for pair in zip(end["send"], end["recv"], strict=True)]
        return {op: pair for pair in pairs for _, op in pair}

    def ahead_of(self, rank: int, op: int) -> tuple[int, ...]:
        """The operations whose match comes before that of this one on that rank, and this one."""
        if self.operations[op].kind == "collective":
            return (op,)
        issued = self.scripts[rank].issued
        return tuple(each for each in issued[: issued.index(op) + 1] if self.match_of(each) == self.match_of(op))

    def match_of(self, op: int) -> tuple[object, ...]:
        """What the messages of a rank are told apart by: among equal ones the order of issue decides."""
        operation = self.operations[op]
        return operation.communicator, operation.kind, operation.peer, operation.tag

    def parties(self, op: int) -> tuple[tuple[int, int], ...]:
        """Which rank has to post which operation before this one can be complete."""
        operation = self.operations[op]
        if operation.kind == "collective":
            return tuple((rank, op) for rank in self.communicators[operation.communicator])
        pair = self._partners[op]
        return pair[:1] if operation.eager else pair


def can_complete(program: Program) -> bool:
    """Whether any runtime at all can complete a program.

    It cannot if operations wait for each other in a circle: an operation comes after what its members have waited for
    before they issue it, and after its dependencies; a message also after those of messages that it must not overtake.
    The order of lanes does not enter, it is the runtime's own affair.
    """
    before: list[set[int]] = [set() for _ in program.operations]
    for op in range(len(program.operations)):
        for rank, end in program.parties(op):
            script = program.scripts[rank]
            before[op].update(script.waited_before_issue(end))
            for ahead in program.ahead_of(rank, end):
                before[op].update(script.deps_of(ahead))
    return not has_circle(before)


def has_circle(before: list[set[int]]) -> bool:
    """Whether some of the items wait for each other, given what each waits for."""
    left = set(range(len(before)))
    while left:
        free = {item for item in left if not before[item] & left}
        if not free:
            return True
        left -= free
    return False
