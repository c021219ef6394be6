"""The algorithms there are, by collective and name, each with what it costs and where it applies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import hocket.collectives.families as folder
from hocket.collectives.schedule import Schedule
from hocket.collectives.semantics import SEMANTICS
from hocket.discovery import discover, takes
from hocket.errors import InvalidArgument, InvalidType
from hocket.sim import Link
from hocket.suggestions import check_known, did_you_mean

Build: TypeAlias = Callable[..., Schedule]
Seconds: TypeAlias = Callable[..., float]

_MOST_BLOCKS = 1024
_algorithms: dict[tuple[str, str], Algorithm] = {}


@dataclass(frozen=True)
class Algorithm:
    """A registered algorithm for a collective.

    Args:
        collective: name of the collective, such as "all_reduce".
        name: name of the algorithm.
        build: (num_ranks, **parameters) -> Schedule.
        seconds: (link, num_ranks, nbytes, **parameters) -> time by the cost model, in seconds; nbytes is the size of
            the array, or of all blocks together for collectives with one block per rank.
        formula: the cost model as text; P ranks, q = ceil(log2 P), m bytes, n blocks.
        exact: whether the simulated time equals the model even if reductions take time. If not, the model is then an
            upper bound, as reductions overlap with messages.
        reference: paper or project of the algorithm.
        restriction: (num_ranks) -> reason why this number is not supported, or None.

    Examples:
        >>> ring = hk.collectives.find_algorithm("all_reduce", "ring")
        >>> ring.formula
        '2(P - 1)(α + mβ/P) + (P - 1)mγ/P'
        >>> link = hk.sim.Link.of(2, 10)  # 2 us, 10 GB/s
        >>> f"{1e6 * ring.seconds(link, num_ranks=4, nbytes=1 << 20):.1f} us"
        '169.3 us'
    """

    collective: str
    name: str
    build: Build
    seconds: Seconds
    formula: str
    exact: bool
    reference: str
    restriction: Callable[[int], str | None]

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Names and defaults of the parameters besides the number of ranks."""
        signature = inspect.signature(self.build)
        return {name: each.default for name, each in list(signature.parameters.items())[1:]}

    def schedule(self, num_ranks: int, **parameters: Any) -> Schedule:
        """Build the schedule.

        Raises:
            InvalidArgument: the number of ranks is not supported, or a parameter is unknown or invalid.
            InvalidType: the algorithm does not build a Schedule.
        """
        if num_ranks < 1:
            raise InvalidArgument(f"num_ranks must be 1 or more, got {num_ranks}")
        refusal = self.restriction(num_ranks)
        if refusal:
            raise InvalidArgument(f"{self.collective} by {self.name} does not support {num_ranks} ranks: {refusal}")
        self.check(parameters)
        schedule = self.build(num_ranks, **parameters)
        if not isinstance(schedule, Schedule):
            raise InvalidType(f"{self.collective} by {self.name} must build a Schedule, got {schedule!r}")
        return replace(schedule, algorithm=self.name, parameters={**self.parameters, **parameters})

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Raise InvalidArgument if a parameter is unknown or has an invalid value."""
        known = self.parameters
        for name, value in parameters.items():
            if name not in known:
                raise InvalidArgument(
                    f"{self.collective} by {self.name} has no parameter {name!r}"
                    + (f"; its parameters: {', '.join(known)}" if known else "")
                )
            if isinstance(known[name], int) and not (isinstance(value, int) and value >= 1):
                raise InvalidArgument(f"{name} of {self.name} must be an integer of 1 or more, got {value!r}")

    def best_num_blocks(self, link: Link, num_ranks: int, nbytes: float, **parameters: Any) -> int:
        """Return the number of blocks with the smallest time by the model; 1 without such a parameter."""
        self.check(parameters)
        if "num_blocks" not in self.parameters:
            return 1
        least, most = 1, max(1, min(_MOST_BLOCKS, int(nbytes)))

        def seconds(num_blocks: int) -> float:
            return self.seconds(link, num_ranks, nbytes, num_blocks=num_blocks, **parameters)

        while most - least > 3:  # ternary search: latencies grow with the number of blocks, the rest decreases
            low, high = least + (most - least) // 3, most - (most - least) // 3
            if seconds(low) <= seconds(high):
                most = high
            else:
                least = low
        return min(range(least, most + 1), key=seconds)


def algorithm(
    collective: str,
    name: str,
    *,
    formula: str,
    seconds: Seconds,
    exact: bool = True,
    reference: str = "",
    restriction: Callable[[int], str | None] = lambda num_ranks: None,
) -> Callable[[Build], Build]:
    """Register the decorated function as `Algorithm.build`; the arguments are those of `Algorithm`.

    Raises:
        InvalidArgument: the collective is unknown, or another algorithm has this name.
        InvalidType: the decorated object does not take num_ranks.

    Examples:
        >>> from hocket.collectives import Transfers, make_schedule
        >>> def seconds(link, num_ranks, nbytes):
        ...     return (num_ranks - 1) * link.message_s(nbytes)
        >>> @hk.collectives.algorithm("broadcast", "star", formula="(P - 1)(α + mβ)", seconds=seconds)
        ... def star(num_ranks):
        ...     '''The root sends to all ranks in turn.'''
        ...     return make_schedule("broadcast", num_ranks, 1, [Transfers(0, rank, 0) for rank in range(1, num_ranks)])
        >>> hk.collectives.find_algorithm("broadcast", "star").schedule(4)
        <Schedule broadcast star: 4 ranks, 1 blocks, 3 rounds, 3 transfers>
    """

    def register(build: Build) -> Build:
        check_known("collective", collective, SEMANTICS)
        if not takes(build, "num_ranks"):
            raise InvalidType(f"{name!r} of {collective} must be a function of num_ranks, got {build!r}")
        if (other := _algorithms.get((collective, name))) is not None:
            raise InvalidArgument(
                f"an algorithm {name!r} of {collective} is already registered in {other.build.__module__}"
            )
        _algorithms[collective, name] = Algorithm(
            collective, name, build, seconds, formula, exact, reference, restriction
        )
        return build

    return register


@lru_cache
def _load() -> None:
    discover(folder, into=_algorithms)


def algorithms(collective: str | None = None) -> list[Algorithm]:
    """Return all algorithms, or those of one collective, sorted by collective and name.

    Examples:
        >>> [each.name for each in hk.collectives.algorithms("reduce_scatter")]
        ['circulant', 'hierarchical', 'recursive_halving', 'ring']
    """
    _load()
    order = list(SEMANTICS)
    ordered = sorted(_algorithms.values(), key=lambda each: (order.index(each.collective), each.name))
    return [each for each in ordered if collective in (None, each.collective)]


def find_algorithm(collective: str, name: str) -> Algorithm:
    """Return one algorithm.

    Raises:
        InvalidArgument: the collective or the name is unknown; the error lists all names.

    Examples:
        >>> hk.collectives.find_algorithm("broadcast", "chain").schedule(4, num_blocks=2)
        <Schedule broadcast chain, num_blocks=2: 4 ranks, 2 blocks, 4 rounds, 6 transfers>
        >>> hk.collectives.find_algorithm("barrier", "disemination")
        Traceback (most recent call last):
        hocket.errors.InvalidArgument: barrier has no algorithm 'disemination'; ...
    """
    _load()
    check_known("collective", collective, SEMANTICS)
    try:
        return _algorithms[collective, name]
    except KeyError:
        names = [each.name for each in algorithms(collective)]
        raise InvalidArgument(
            f"{collective} has no algorithm {name!r}; its algorithms: {', '.join(names)}{did_you_mean(name, names)}"
        ) from None
