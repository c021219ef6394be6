"""How a communicator chooses the library that carries an operation, and the schedule that executes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from numbers import Integral, Real

from hocket import _native
from hocket.backends import has_collectives
from hocket.backends.base import Backend
from hocket.comm.policy import (
    CHOOSABLE,
    LARGEST_NBYTES,
    WITH_COUNTS,
    Explanation,
    Group,
    Policy,
    Range,
    RankedCarrier,
    dtype_class,
    join_carrier,
    range_of,
    split_carrier,
    total_nbytes,
)
from hocket.comm.schedule_source import ScheduleSource, columns_of
from hocket.errors import InvalidArgument, InvalidType
from hocket.suggestions import check_known

OWN = "native"
"""The `algorithm` of a call that uses the library's own algorithm, regardless of the policy."""
_MAX_CACHED = 4096
_WITHOUT_SCHEDULES = ("gather", "scatter", "gatherv", "scatterv", "send", "recv")


class Chooser:
    """Makes the choices of one communicator, from its policy and the schedules that were built for it.

    The communicator owns it, and passes itself to the methods that need the native core.

    Args:
        group: size, backends and levels of the communicator.
        names: names of all backends, in the order in which the communicator numbers them.
        libraries: the backends other than shared memory.
        key: key of the communicator.
        schedules: source of schedules; None: only the libraries' own algorithms can be chosen.

    Attributes:
        policy: the policy in force.
        given_policy: the policy as it was set; communicators made from this one start with it.
        on_turn: called between two collectives, the same ones on all ranks; None: nothing is called.
    """

    def __init__(
        self,
        group: Group,
        names: Sequence[str],
        libraries: Sequence[Backend],
        key: int,
        schedules: ScheduleSource | None,
    ) -> None:
        self.group = group
        self.policy: Policy
        self.given_policy: Policy
        self.on_turn: Callable[[], None] | None = None
        self._names = list(names)
        self._libraries = libraries
        self._key = key
        self._schedules = schedules
        self._programs: dict[tuple[str, object], int] = {}
        self._recorded: list[str] = []
        """The policies so far, as recorded runs know them."""
        self._program_cache: dict[tuple[str, object, int], int] = {}  # by the arguments of calls

    def set_policy(self, comm: _native.Communicator, policy: Policy) -> None:
        """Use a policy from now on. Raises InvalidType if `policy` is not a `Policy`."""
        if not isinstance(policy, Policy):
            raise InvalidType(f"policy must be a hocket.Policy, such as Policy.fixed({{'*': 'shm'}}), not {policy!r}")
        identity = {str(name): str(text) for name, text in policy.identity(self.group).items()}
        choices = policy.choices(self.group)
        shares = [policy.shares(self.group, library.name) for library in self._libraries]
        self.policy = policy
        for kind in CHOOSABLE:
            for dtypes in _native.DTYPE_CLASS_NAMES:
                self.set_ranges(comm, kind, dtypes, choices.get((kind, dtypes), ()))
        for library, each in zip(self._libraries, shares, strict=True):
            library.set_shares(self._key, each)
        self.given_policy = policy
        recorded = json.dumps({"identity": identity, "group": asdict(self.group)})
        if comm.rank == 0 and recorded not in self._recorded:
            comm._define_policy(recorded, len(self._recorded))
            self._recorded.append(recorded)

    def explain(self, comm: _native.Communicator, op: str, nbytes: int, dtype: str, reduction: str) -> Explanation:
        """See `Communicator.explain`."""
        check_known("operation", op, CHOOSABLE)
        if not isinstance(nbytes, Integral) or nbytes < 0:
            what = nbytes if isinstance(nbytes, Real) else f"{type(nbytes).__name__}; for an array x, pass x.nbytes"
            raise InvalidArgument(f"nbytes must be an int of 0 or more, not {what}")
        dtypes = dtype_class(op, dtype)
        reduced = reduction if dtypes != "moved" else None
        backend, algorithm = comm._choose(op, dtype, reduced, nbytes)
        refused: Mapping[str, str] = {
            name: reason
            for name in self.group.backends
            if (reason := comm._refuses(name, op, dtype, reduced, nbytes)) is not None
        }
        reason, candidates = self.policy.explain(self.group, op, dtypes, nbytes)
        usable = self._complete([each for each in candidates if each.backend not in refused], op, nbytes)
        if refused:
            reason += f"; {', '.join(refused)} cannot carry it"
        chosen = join_carrier(backend, algorithm)
        return Explanation(op, nbytes, dtype, self.group.size, chosen, reason, tuple(usable), refused)

    def set_ranges(self, comm: _native.Communicator, kind: str, dtypes: str, ranges: Sequence[Range]) -> None:
        """Set the choices for one operation; called on all members between the same two operations."""
        ranges = self._with_schedules(kind, ranges)
        comm._set_choice(
            kind, dtypes, [(each.most_nbytes, self._carriers(comm, kind, each.ranking)) for each in ranges]
        )

    def carrier_over(self, backend: str, op: str, nbytes: int) -> str:
        """Return the name, as in `Range.ranking`, of the best way to carry an operation over one library."""
        return self._complete([RankedCarrier(backend, None, "")], op, nbytes)[0].carrier

    def find_program(self, comm: _native.Communicator, kind: str, algorithm: object, nbytes: int) -> int:
        """Return the number of a schedule, which is built on first use; 0 is the library's own algorithm."""
        try:
            return self._program_cache[kind, algorithm, nbytes]
        except (KeyError, TypeError):  # TypeError: the value of `algorithm` cannot be hashed
            pass
        number = self._build_program(comm, kind, algorithm, nbytes)
        if len(self._program_cache) == _MAX_CACHED:
            self._program_cache.clear()
        self._program_cache[kind, algorithm, nbytes] = number
        return number

    def _complete(self, candidates: list[RankedCarrier], op: str, nbytes: int) -> list[RankedCarrier]:
        """Add names of schedules to candidates that are libraries without collectives."""
        if self._schedules is None:
            return candidates
        return self._schedules.complete_candidates(candidates, op, nbytes, self.group, self.policy)

    def _with_schedules(self, kind: str, ranges: Sequence[Range]) -> Sequence[Range]:
        """Add names of schedules to ranges that name none, for libraries without collectives."""
        in_order = tuple(self.group.backends)
        bare = [name for name in in_order if not has_collectives(name)]
        if not bare or self._schedules is None:
            return ranges
        best = {name: self._schedules.best_by_model(kind, self.group, name, self.policy) for name in bare}
        best = {name: of_name for name, of_name in best.items() if of_name}
        ranges = ranges or [Range(LARGEST_NBYTES, in_order)]

        def carrier(name: str, nbytes: int) -> str:
            return join_carrier(name, *range_of(best[name], nbytes).ranking) if name in best else name

        def at(nbytes: int) -> Range:
            given = range_of(ranges, nbytes)
            ranking = (carrier(name, nbytes) for name in (*given.ranking, *in_order))
            return replace(given, most_nbytes=nbytes, ranking=tuple(dict.fromkeys(ranking)))

        return [at(most) for most in sorted({each.most_nbytes for some in (ranges, *best.values()) for each in some})]

    def _carriers(self, comm: _native.Communicator, kind: str, ranking: tuple[str, ...]) -> list[tuple[int, int]]:
        """Numbers of backends and schedules, for the native core."""
        carriers = []
        for backend, algorithm in map(split_carrier, ranking):
            if backend in self.group.backends:
                program = self.find_program(comm, kind, algorithm, 0) if algorithm else 0
                carriers.append((self._names.index(backend), program))
        return carriers

    def _build_program(self, comm: _native.Communicator, kind: str, algorithm: object, nbytes: int) -> int:
        if algorithm == OWN:
            return 0
        collective = WITH_COUNTS.get(kind, kind)
        if kind in _WITHOUT_SCHEDULES or self._schedules is None:
            raise InvalidArgument(f"{kind} has no algorithms to choose from; omit algorithm, or pass {OWN!r}")
        total = total_nbytes(kind, nbytes, self.group.size)
        complete = self._schedules.complete(collective, algorithm, self.group, total)
        key = collective, complete
        if key not in self._programs:
            name, table = self._schedules.build(collective, complete, self.group.size)
            self._programs[key] = comm._add_program(collective, name, **columns_of(table))
        return self._programs[key]
