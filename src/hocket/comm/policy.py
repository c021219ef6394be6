"""Which backend carries an operation that names none."""

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
"""The operations a policy has a say in."""
WITH_COUNTS: Mapping[str, str] = _native.WITH_COUNTS
"""The operations with blocks of different sizes, and what each is with equal ones."""


def total_nbytes(op: str, nbytes: int, num_ranks: int) -> int:
    """Return the bytes of the largest array of an operation, given those of one block where it has one for every rank.

    Args:
        op: name of the operation.
        nbytes: as in `Record.nbytes`.
        num_ranks: of the communicator.
    """
    return nbytes * num_ranks if op in WITH_BLOCKS else nbytes


def dtype_class(op: str, dtype: str) -> str:
    """Return the class of types that choices are made by, as the native core does (native/core/choice.hpp)."""
    if op not in _native.REDUCING_OPS:
        return "moved"
    return "half" if dtype in ("float16", "bfloat16") else "full"


def join_carrier(backend: str, algorithm: str) -> str:
    """Return one name for both, as in `Range.ranking`."""
    return f"{backend}/{algorithm}" if algorithm else backend


def split_carrier(text: str) -> tuple[str, str]:
    """Return the backend and the algorithm of a name in a ranking; the latter is empty for the library's own way."""
    backend, _, algorithm = text.partition("/")
    return backend, algorithm


@dataclass(frozen=True)
class Range:
    """What is chosen up to a size.

    Args:
        most_nbytes: the largest operation of this range, in bytes as in `Record.nbytes`.
        ranking: best first: names of backends, or of a backend and a schedule as in "mpi/chain(num_blocks=8)".
        reason: why, in words, where there is more to say than the times.
    """

    most_nbytes: int
    ranking: tuple[str, ...]
    reason: str = ""


def range_of(ranges: Sequence[Range], nbytes: int) -> Range:
    """Return the range that a size is in."""
    return next(each for each in ranges if nbytes <= each.most_nbytes)


@dataclass(frozen=True)
class RankedCarrier:
    """What a policy knows of one way to carry an operation.

    Args:
        backend: name.
        seconds: expected time of the operation; None where the policy knows none.
        source: where that comes from: "measured", "modelled", or another word or two.
        algorithm: name of the schedule with its parameters; empty: the library's own way.
        predicted_s: what the schedule's formula says for it, over a link that was fitted to measurements; None where
            there is none.
        interval_s: the 95 % interval of `seconds` where it is measured.
    """

    backend: str
    seconds: float | None
    source: str
    algorithm: str = ""
    predicted_s: float | None = None
    interval_s: tuple[float, float] | None = None

    @property
    def carrier(self) -> str:
        """As in `Range.ranking`."""
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
    """Which backend carries an operation, and why.

    Args:
        op: name of the operation.
        nbytes: as in `Record.nbytes`.
        dtype: name of the type.
        num_ranks: of the communicator.
        chosen: name of the backend, and of the schedule where there is one.
        reason: why, in words.
        candidates: from best to worst, the chosen one first.
        refused: why other backends cannot carry it at all, by name.
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
    """Format a time with a unit that fits, e.g. "12.3 us"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def format_nbytes(nbytes: int) -> str:
    """Format a size with a unit that fits, e.g. "64 KiB"."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:g} {unit}" if nbytes % scale == 0 else f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"


@dataclass(frozen=True)
class Group:
    """The facts about a communicator by which backends are chosen, equal on all its members (rule R8).

    Args:
        size: its ranks.
        backends: names of those that operations may use.
        num_hosts: that its ranks are on.
        ranks_per_host: of every host, in a row; 1 where hosts have different numbers of them, or another order.
        ranks_per_domain: likewise of those that share a cache or a memory node; 1 where there is one domain a host.
    """

    size: int
    backends: Sequence[str]
    num_hosts: int = 1
    ranks_per_host: int = 1
    ranks_per_domain: int = 1


Choices = Mapping[tuple[str, str], Sequence[Range]]
"""By (operation, class of types): ranges in order of size, the last of them open."""


class Policy(ABC):
    """A rule for choosing backends, from facts that are equal on all members (rule R8)."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @staticmethod
    def fixed(backends: Mapping[str, str]) -> Policy:
        """Make a policy that names one backend per operation.

        Args:
            backends: name of a backend by operation, e.g. ``{"all_to_all": "mpi", "*": "shm"}``; "*" stands for all
                that are not named.

        Raises:
            InvalidType: it is something else.
            InvalidArgument: a key is not the name of an operation.
        """
        if not isinstance(backends, Mapping) or not all(
            isinstance(each, str) for pair in backends.items() for each in pair
        ):
            raise InvalidType(
                f"backends must name a backend by operation, as {{'*': 'mpi'}} does for all of them, not {backends!r}"
            )
        return _FixedPolicy(dict(backends))

    @abstractmethod
    def choices(self, group: Group) -> Choices:
        """Return what to choose for a communicator."""

    @abstractmethod
    def explain(self, group: Group, op: str, dtypes: str, nbytes: int) -> tuple[str, list[RankedCarrier]]:
        """Return why `choices` says what it says for an operation: in words, and what is known of each backend.

        Args:
            group: as for `choices`.
            op: name of the operation.
            dtypes: class of types.
            nbytes: as in `Record.nbytes`.

        Returns:
            The reason, and the candidates from best to worst.
        """

    def shares(self, group: Group, backend: str) -> Mapping[str, Sequence[tuple[int, float]]]:
        """Return what the first of two libraries carries of operations over both, as "mpi+gloo"; half, where it is not
        said.

        Args:
            group: as for `choices`.
            backend: both names.

        Returns:
            By operation, in order of size: (up to so many bytes, a share from 0 to 1).
        """
        return {}

    def fitted_link(self, group: Group, backend: str) -> Any:
        """Return what a message costs over a backend (`hocket.sim.Link`); None where that was not measured.

        By it schedules are chosen where a backend has no collectives of its own.
        """
        return None


class DefaultPolicy(Policy):
    """The backends in their own order."""

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
                    f"{kind!r} is no operation; there are {', '.join(CHOOSABLE)}, and '*' for the rest"
                )
        self._backends = dict(backends)

    def choices(self, group: Group) -> Choices:
        for kind, name in self._backends.items():
            if name not in group.backends:
                raise InvalidArgument(
                    f"the policy names {name!r} for {kind}, but there are {', '.join(group.backends)}"
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
