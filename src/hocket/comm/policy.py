"""The choice of a backend for an operation that names none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hocket import _native
from hocket.errors import InvalidArgument, InvalidType
from hocket.trace.traffic import WITH_BLOCKS

LARGEST_NBYTES = (1 << 64) - 1
_INTERNAL = ("split", "dup", "group")
CHOOSABLE = tuple(name for name in _native.OP_NAMES if name not in _INTERNAL)
"""The operations for which a policy chooses."""
WITH_COUNTS: Mapping[str, str] = _native.WITH_COUNTS
"""For each operation with blocks of different sizes, the operation with equal blocks."""


def total_nbytes(op: str, nbytes: int, num_ranks: int) -> int:
    """Return the size in bytes of the largest array of an operation.

    Args:
        op: name of the operation.
        nbytes: as in `Record.nbytes`: the size of one block, if the operation has a block for every rank.
        num_ranks: number of ranks of the communicator.
    """
    return nbytes * num_ranks if op in WITH_BLOCKS else nbytes


def dtype_class(op: str, dtype: str) -> str:
    """Return the class of types for which choices are made, as in the native core (native/core/choice.hpp)."""
    if op not in _native.REDUCING_OPS:
        return "moved"
    return "half" if dtype in ("float16", "bfloat16") else "full"


def join_carrier(backend: str, algorithm: str) -> str:
    """Return one name for a backend and an algorithm, as in `Range.ranking`."""
    return f"{backend}/{algorithm}" if algorithm else backend


def split_carrier(text: str) -> tuple[str, str]:
    """Return the backend and the algorithm of a name in a ranking; no algorithm means the library's own."""
    backend, _, algorithm = text.partition("/")
    return backend, algorithm


@dataclass(frozen=True)
class Range:
    """The choice for operations up to a size.

    Args:
        most_nbytes: size of the largest operation of this range, in bytes as in `Record.nbytes`.
        ranking: names of backends, or of a backend and a schedule as in "mpi/chain(num_blocks=8)"; best first.
        reason: an explanation in words, if the times alone do not explain the ranking.
    """

    most_nbytes: int
    ranking: tuple[str, ...]
    reason: str = ""


def range_of(ranges: Sequence[Range], nbytes: int) -> Range:
    """Return the range that contains a size."""
    return next(each for each in ranges if nbytes <= each.most_nbytes)


@dataclass(frozen=True)
class RankedCarrier:
    """One way to carry an operation, with its expected time.

    Args:
        backend: name of the backend.
        seconds: expected time of the operation; None: not known.
        source: origin of the time: "measured", "modelled", or another word or two.
        algorithm: name of the schedule with its parameters; empty: the library's own algorithm.
        predicted_s: time by the schedule's formula, over a link that was fitted to measurements; None without a
            formula.
        interval_s: the 95 % confidence interval of `seconds`, if it is measured.
        is_measured: whether `seconds` was measured, at this size or at those around it; else a model has a part in it.
    """

    backend: str
    seconds: float | None
    source: str
    algorithm: str = ""
    predicted_s: float | None = None
    interval_s: tuple[float, float] | None = None
    is_measured: bool = False

    @property
    def carrier(self) -> str:
        """Name of the backend and the schedule, as in `Range.ranking`."""
        return join_carrier(self.backend, self.algorithm)

    def __str__(self) -> str:
        return (
            self.carrier
            + (f" {format_seconds(self.seconds)}" if self.seconds is not None else "")
            + (" [{}, {}]".format(*map(format_seconds, self.interval_s)) if self.interval_s is not None else "")
            + f" ({self.source})"
            + (f", predicted {format_seconds(self.predicted_s)}" if self.predicted_s is not None else "")
        )


@dataclass(frozen=True)
class Explanation:
    """The backend that carries an operation, and the reason.

    Args:
        op: name of the operation.
        nbytes: size in bytes, as in `Record.nbytes`.
        dtype: name of the type.
        num_ranks: number of ranks of the communicator.
        chosen: name of the backend, and of the schedule if one is used.
        reason: explanation of the choice, in words.
        candidates: from best to worst; the first is the chosen one.
        refused: backends that cannot carry the operation, by name, each with the reason.
    """

    op: str
    nbytes: int
    dtype: str
    num_ranks: int
    chosen: str
    reason: str
    candidates: tuple[RankedCarrier, ...]
    refused: Mapping[str, str]

    def __str__(self) -> str:
        data = "" if self.op == "barrier" else f" of {format_nbytes(self.nbytes)} {self.dtype}"
        lines = [
            f"{self.op}{data} between {self.num_ranks} ranks: {self.chosen}",
            f"  why: {self.reason}",
        ]
        for place, candidate in enumerate(self.candidates):
            lines.append(f"  {place + 1}. {candidate}")
        lines += [f"  not {name}: {why}" for name, why in self.refused.items()]
        return "\n".join(lines)


def format_seconds(seconds: float) -> str:
    """Format a time with a suitable unit, e.g. "12.3 us"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def format_nbytes(nbytes: int) -> str:
    """Format a size with a suitable unit, e.g. "64 KiB"."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:g} {unit}" if nbytes % scale == 0 else f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"


@dataclass(frozen=True)
class Group:
    """The facts about a communicator that choices depend on; equal on all its members (rule R8).

    Args:
        size: number of ranks.
        backends: names of the backends that operations may use.
        num_hosts: number of hosts.
        ranks_per_host: number of consecutive ranks on each host; 1 if hosts differ or ranks are in another order.
        ranks_per_domain: the same for ranks that share a cache or a memory node; 1 if each host is one domain.
    """

    size: int
    backends: Sequence[str]
    num_hosts: int = 1
    ranks_per_host: int = 1
    ranks_per_domain: int = 1


Choices = Mapping[tuple[str, str], Sequence[Range]]
"""For each (operation, class of types): ranges in order of size; the last range has no upper limit."""


class Policy(ABC):
    """A rule that chooses backends from facts that are equal on all members (rule R8).

    Pass one to `init`, or set `Communicator.policy`. Use `Policy.fixed` for a fixed choice; a subclass implements
    `choices` and `explain`.

    Examples:
        >>> policy = hk.Policy.fixed({"all_reduce": "shm", "*": "shm"})
        >>> with hk.init(backends=["shm"], policy=policy) as comm:
        ...     why = comm.explain("all_reduce", nbytes=1024)
        >>> why.chosen, why.reason
        ('shm', 'the policy names it')
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @staticmethod
    def fixed(backends: Mapping[str, str]) -> Policy:
        """Make a policy that names one backend per operation.

        Args:
            backends: the name of a backend for each operation, e.g. ``{"all_to_all": "mpi", "*": "shm"}``; "*" stands
                for all operations that are not named.

        Raises:
            InvalidType: `backends` is not a mapping of str to str.
            InvalidArgument: a key is not the name of an operation.

        Examples:
            >>> hk.Policy.fixed({"all_to_al": "mpi"})
            Traceback (most recent call last):
            hocket.errors.InvalidArgument: 'all_to_al' is not an operation; ...
        """
        if not isinstance(backends, Mapping) or not all(
            isinstance(each, str) for pair in backends.items() for each in pair
        ):
            raise InvalidType(
                f"backends must map operations to names of backends, e.g. {{'*': 'mpi'}} for all, not {backends!r}"
            )
        return _FixedPolicy(dict(backends))

    @abstractmethod
    def choices(self, group: Group) -> Choices:
        """Return the choices for a communicator."""

    @abstractmethod
    def explain(self, group: Group, op: str, dtypes: str, nbytes: int) -> tuple[str, list[RankedCarrier]]:
        """Return the reason for the choice for an operation, and the candidates from best to worst.

        Args:
            group: as for `choices`.
            op: name of the operation.
            dtypes: class of types.
            nbytes: as in `Record.nbytes`.
        """

    def shares(self, group: Group, backend: str) -> Mapping[str, Sequence[tuple[int, float]]]:
        """Return the share of the first of two libraries in operations that are split over both, e.g. "mpi+gloo".

        Args:
            group: as for `choices`.
            backend: both names.

        Returns:
            For each operation, in order of size: (largest number of bytes, share from 0 to 1). Default: one half.
        """
        return {}

    def identity(self, group: Group) -> dict[str, str]:
        """Return which policy this is, as texts by name, for recorded runs: "policy" is its class.

        Args:
            group: as for `choices`.
        """
        return {"policy": type(self).__name__}

    def fitted_link(self, group: Group, backend: str) -> Any:
        """Return the cost of a message over a backend (a `hocket.sim.Link`), or None if it was not measured.

        It is used to choose schedules for a backend without collectives.
        """
        return None


class DefaultPolicy(Policy):
    """Chooses the first backend of the communicator."""

    def choices(self, group: Group) -> Choices:
        return {}

    def explain(self, group: Group, op: str, dtypes: str, nbytes: int) -> tuple[str, list[RankedCarrier]]:
        return "the first of the communicator's backends", [
            RankedCarrier(name, None, "in order") for name in group.backends
        ]


class _FixedPolicy(Policy):
    def __init__(self, backends: Mapping[str, str]) -> None:
        for kind in backends:
            if kind != "*" and kind not in CHOOSABLE:
                raise InvalidArgument(
                    f"{kind!r} is not an operation; choose from {', '.join(CHOOSABLE)}, and '*' for the rest"
                )
        self._backends = dict(backends)

    def identity(self, group: Group) -> dict[str, str]:
        return {
            "policy": "Policy.fixed",
            "backends": ", ".join(f"{kind}={name}" for kind, name in self._backends.items()),
        }

    def choices(self, group: Group) -> Choices:
        for kind, name in self._backends.items():
            if name not in group.backends:
                raise InvalidArgument(
                    f"the policy names {name!r} for {kind}, but the communicator has {', '.join(group.backends)}"
                )
        named = {kind: self._backends.get(kind, self._backends.get("*")) for kind in CHOOSABLE}
        return {
            (kind, dtypes): [Range(LARGEST_NBYTES, (name,))]
            for kind, name in named.items()
            if name is not None
            for dtypes in _native.DTYPE_CLASS_NAMES
        }

    def explain(self, group: Group, op: str, dtypes: str, nbytes: int) -> tuple[str, list[RankedCarrier]]:
        name = self._backends.get(op, self._backends.get("*"))
        order = group.backends if name is None else [name, *(each for each in group.backends if each != name)]
        reason = f"the policy names no backend for {op}" if name is None else "the policy names it"
        return reason, [RankedCarrier(each, None, "fixed" if each == name else "in order") for each in order]
