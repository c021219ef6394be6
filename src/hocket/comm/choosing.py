"""How a communicator chooses: the library that carries an operation, and the schedule by which it is executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Protocol, cast

from hocket import _native
from hocket.backends import has_collectives
from hocket.comm.objects import ObjectOperations
from hocket.comm.policy import (
    CHOOSABLE,
    LARGEST_NBYTES,
    WITH_COUNTS,
    Candidate,
    Explanation,
    Group,
    Policy,
    Range,
    dtype_class,
    join_carrier,
    range_of,
    split_carrier,
    total_nbytes,
)
from hocket.errors import InvalidArgument, InvalidType
from hocket.suggestions import unknown

if TYPE_CHECKING:
    from hocket.comm.fabric import Backends

OWN = "native"
"""The `algorithm` of a call that is to go the library's own way, whatever the policy says."""
_MOST_FOUND = 4096
_WITHOUT_SCHEDULES = ("gather", "scatter", "gatherv", "scatterv", "send", "recv")


class Table(Protocol):
    """A schedule as far as the native core is concerned (hocket.collectives.Schedule)."""

    num_blocks: int
    num_slots: int
    ports: int
    group_size: int
    rounds: Any
    sources: Any
    destinations: Any
    blocks: Any
    source_slots: Any
    destination_slots: Any
    reduces: Any


class ScheduleSource(Protocol):
    """Where schedules come from (hocket.collectives.source.Schedules)."""

    def complete(self, collective: str, algorithm: object, group: Group, nbytes: int) -> object:
        """Return what a call gave as `algorithm` with all its parameters: hashable, the same for the same schedule."""
        ...

    def build(self, collective: str, algorithm: object, num_ranks: int) -> tuple[str, Any]:
        """Build what `complete` returned; return its name and the table."""
        ...

    def best_by_model(self, op: str, group: Group, backend: str, policy: Policy) -> Sequence[Range]:
        """Return the best schedule over a library up to each size, by name; none if there are none."""
        ...

    def complete_candidates(
        self, candidates: Sequence[Candidate], op: str, nbytes: int, group: Group, policy: Policy
    ) -> list[Candidate]:
        """Name the best schedules in candidates that are libraries without collectives of their own; each way once."""
        ...


class ChoosingOperations(ObjectOperations):
    """What a communicator knows of choices. Its policy is set once it has its backends."""

    if TYPE_CHECKING:

        @property
        def num_hosts(self) -> int: ...

    _key: int
    _names: list[str]
    _levels: tuple[int, int]  # ranks per host and per domain
    _backends: Backends
    _policy: Policy  # in force
    _given_policy: Policy  # as it was set: what communicators made from this one take over
    _schedules: ScheduleSource | None
    _on_turn: Callable[[], None] | None = None
    _programs: dict[tuple[str, object], int]
    _programs_found: dict[tuple[str, object, int], int]  # by what calls gave

    @property
    def policy(self) -> Policy:
        """How a backend is chosen for an operation that names none; to be set alike on all members, between the same
        operations. As it was set it is taken over by communicators that are made from this one afterwards; what is
        learned while running belongs to this one alone."""
        return self._policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        if not isinstance(policy, Policy):
            raise InvalidType(f"policy must be a hocket.Policy, such as Policy.fixed({{'*': 'shm'}}), not {policy!r}")
        choices = policy.choices(self._group)
        libraries = self._fabric.libraries
        shares = [policy.shares(self._group, library.name) for library in libraries]
        self._policy = policy
        for kind in CHOOSABLE:
            for dtypes in _native.DTYPE_CLASS_NAMES:
                self._set_ranges(kind, dtypes, choices.get((kind, dtypes), ()))
        for library, each in zip(libraries, shares, strict=True):
            library.set_shares(self._key, each)
        self._given_policy = policy

    def explain(self, op: str, nbytes: int = 0, dtype: str = "float32", reduction: str = "sum") -> Explanation:
        """Say what carries an operation that names no backend and no algorithm, why, and what was second.

        Args:
            op: name of the operation, e.g. "all_reduce".
            nbytes: as in `Record.nbytes`.
            dtype: name of the type of its elements.
            reduction: for operations that reduce.

        Raises:
            InvalidArgument: there is no such operation, type or size.
            UnsupportedDtype: no backend can carry it.
        """
        if op not in CHOOSABLE:
            raise InvalidArgument(unknown("operation", op, CHOOSABLE))
        if not isinstance(nbytes, Integral) or nbytes < 0:
            what = nbytes if isinstance(nbytes, Real) else f"{type(nbytes).__name__}; of an array that is x.nbytes"
            raise InvalidArgument(f"nbytes is a number of bytes, 0 or more, not {what}")
        dtypes = dtype_class(op, dtype)
        reduced = reduction if dtypes != "moved" else None
        backend, algorithm = self._choose(op, dtype, reduced, nbytes)
        refused: Mapping[str, str] = {
            name: reason
            for name in self._backends
            if (reason := self._refuses(name, op, dtype, reduced, nbytes)) is not None
        }
        reason, candidates = self._policy.explain(self._group, op, dtypes, nbytes)
        able = self._complete([each for each in candidates if each.backend not in refused], op, nbytes)
        if refused:
            reason += f"; {', '.join(refused)} cannot carry it"
        chosen = join_carrier(backend, algorithm)
        return Explanation(op, nbytes, dtype, self.size, chosen, reason, tuple(able), refused)

    def _set_ranges(self, kind: str, dtypes: str, ranges: Sequence[Range]) -> None:
        """Set what is chosen for one operation, on all members between the same operations."""
        ranges = self._with_schedules(kind, ranges)
        self._set_choice(kind, dtypes, [(each.most_nbytes, self._carriers(kind, each.ranking)) for each in ranges])

    def _complete(self, candidates: list[Candidate], op: str, nbytes: int) -> list[Candidate]:
        """Name the schedules of libraries that have no collectives of their own."""
        if self._schedules is None:
            return candidates
        return self._schedules.complete_candidates(candidates, op, nbytes, self._group, self._policy)

    def _carrier_over(self, backend: str, op: str, nbytes: int) -> str:
        """What carries an operation over a library by itself, as in `Range.ranking`."""
        return self._complete([Candidate(backend, None, "")], op, nbytes)[0].carrier

    def _with_schedules(self, kind: str, ranges: Sequence[Range]) -> Sequence[Range]:
        """Name schedules for libraries that have no collectives of their own, where ranges name none."""
        bare = [name for name in self._backends if not has_collectives(name)]
        if not bare or self._schedules is None:
            return ranges
        best = {name: self._schedules.best_by_model(kind, self._group, name, self._policy) for name in bare}
        best = {name: of_name for name, of_name in best.items() if of_name}
        in_order = tuple(self._backends)
        ranges = ranges or [Range(LARGEST_NBYTES, in_order)]

        def carrier(name: str, nbytes: int) -> str:
            return join_carrier(name, *range_of(best[name], nbytes).ranking) if name in best else name

        def at(nbytes: int) -> Range:
            given = range_of(ranges, nbytes)
            ranking = (carrier(name, nbytes) for name in (*given.ranking, *in_order))
            return replace(given, most_nbytes=nbytes, ranking=tuple(dict.fromkeys(ranking)))

        return [at(most) for most in sorted({each.most_nbytes for some in (ranges, *best.values()) for each in some})]

    def _take_turn(self) -> None:
        """Called by the native methods before a collective, where `_set_turn` has asked for it."""
        if self._on_turn is not None:
            self._on_turn()

    @property
    def _group(self) -> Group:
        return Group(self.size, list(self._backends), self.num_hosts, *self._levels)

    def _carriers(self, kind: str, ranking: tuple[str, ...]) -> list[tuple[int, int]]:
        """Numbers of backends and schedules, for the native core."""
        carriers = []
        for backend, algorithm in map(split_carrier, ranking):
            if backend in self._backends:
                program = self._find_program(kind, algorithm, 0) if algorithm else 0
                carriers.append((self._names.index(backend), program))
        return carriers

    def _find_program(self, kind: str, algorithm: object, nbytes: int) -> int:
        """The number of a schedule, which is built when it is asked for first; 0 is the library's own way.

        Called by the native methods with what `algorithm=` was given.
        """
        try:
            return self._programs_found[kind, algorithm, nbytes]
        except (KeyError, TypeError):  # a TypeError where a call gave what cannot be hashed
            pass
        number = self._build_program(kind, algorithm, nbytes)
        if len(self._programs_found) == _MOST_FOUND:
            self._programs_found.clear()
        self._programs_found[kind, algorithm, nbytes] = number
        return number

    def _build_program(self, kind: str, algorithm: object, nbytes: int) -> int:
        if algorithm == OWN:
            return 0
        collective = WITH_COUNTS.get(kind, kind)
        if kind in _WITHOUT_SCHEDULES or self._schedules is None:
            raise InvalidArgument(f"{kind} has no algorithms to choose from; leave algorithm out, or say {OWN!r}")
        total = total_nbytes(kind, nbytes, self.size)
        complete = self._schedules.complete(collective, algorithm, self._group, total)
        key = collective, complete
        if key not in self._programs:
            name, table = self._schedules.build(collective, complete, self.size)
            self._programs[key] = self._add_program(collective, name, **_columns(table))
        return self._programs[key]


def _columns(table: Table) -> dict[str, Any]:
    names = ("num_blocks", "num_slots", "ports", "group_size", "rounds", "sources", "destinations", "blocks",
             "source_slots", "destination_slots", "reduces")  # fmt: skip
    return {name: cast(Any, getattr(table, name)) for name in names}
