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
from hocket.suggestions import did_you_mean, unknown

Build: TypeAlias = Callable[..., Schedule]
Seconds: TypeAlias = Callable[..., float]

_MOST_BLOCKS = 1024
_found: dict[tuple[str, str], Algorithm] = {}


@dataclass(frozen=True)
class Algorithm:
    """One way to do a collective.

    Args:
        collective, name: of it.
        build: (num_ranks, **parameters) -> Schedule.
        seconds: (link, num_ranks, nbytes, **parameters) -> the time by the model, in seconds; nbytes as in `Record`
            for arrays without blocks, all blocks together for the others.
        formula: the same as text; P ranks, q = ceil(log2 P), m bytes, n blocks.
        exact: whether the simulated time equals it also where reducing takes time; otherwise it is a bound then, as
            reducing overlaps with what comes in.
        reference: where it comes from.
        restriction: why it cannot do so many ranks, or None.
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
        """Names and defaults of what can be chosen besides the number of ranks."""
        signature = inspect.signature(self.build)
        return {name: each.default for name, each in list(signature.parameters.items())[1:]}

    def schedule(self, num_ranks: int, **parameters: Any) -> Schedule:
        """Build the schedule.

        Raises:
            InvalidArgument: the algorithm cannot do so many ranks, or has no such parameter.
            InvalidType: what it builds is no Schedule.
        """
        if num_ranks < 1:
            raise InvalidArgument(f"a schedule is for 1 rank or more, not {num_ranks}")
        refusal = self.restriction(num_ranks)
        if refusal:
            raise InvalidArgument(f"{self.collective} by {self.name} cannot do {num_ranks} ranks: {refusal}")
        self.check(parameters)
        schedule = self.build(num_ranks, **parameters)
        if not isinstance(schedule, Schedule):
            raise InvalidType(f"{self.collective} by {self.name} must build a Schedule, not {schedule!r}")
        return replace(schedule, algorithm=self.name, parameters={**self.parameters, **parameters})

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Raise InvalidArgument if the algorithm has no such parameters, or they cannot have such values."""
        known = self.parameters
        for name, value in parameters.items():
            if name not in known:
                raise InvalidArgument(
                    f"{self.collective} by {self.name} has no parameter {name!r}"
                    + (f"; it has {', '.join(known)}" if known else "")
                )
            if isinstance(known[name], int) and not (isinstance(value, int) and value >= 1):
                raise InvalidArgument(f"{name} of {self.name} is a number of 1 or more, not {value!r}")

    def best_num_blocks(self, link: Link, num_ranks: int, nbytes: float, **parameters: Any) -> int:
        """Return the number of blocks with the least time by the model; 1 where there is no such parameter."""
        self.check(parameters)
        if "num_blocks" not in self.parameters:
            return 1
        least, most = 1, max(1, min(_MOST_BLOCKS, int(nbytes)))

        def seconds(num_blocks: int) -> float:
            return self.seconds(link, num_ranks, nbytes, num_blocks=num_blocks, **parameters)

        while most - least > 3:  # the time has one minimum: latencies grow with the blocks, the rest falls
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
    """Register the decorated function as `Algorithm.build`; see there for the arguments."""

    def register(build: Build) -> Build:
        if collective not in SEMANTICS:
            raise InvalidArgument(unknown("collective", collective, SEMANTICS))
        if not takes(build, "num_ranks"):
            raise InvalidType(f"{name!r} of {collective} must be a function of num_ranks, not {build!r}")
        if (other := _found.get((collective, name))) is not None:
            raise InvalidArgument(
                f"there is an algorithm {name!r} of {collective} already, in {other.build.__module__}"
            )
        _found[collective, name] = Algorithm(collective, name, build, seconds, formula, exact, reference, restriction)
        return build

    return register


@lru_cache
def _load() -> None:
    discover(folder, into=_found)


def algorithms(collective: str | None = None) -> list[Algorithm]:
    """Return all algorithms, or those of one collective, by collective and name."""
    _load()
    order = list(SEMANTICS)
    found = sorted(_found.values(), key=lambda each: (order.index(each.collective), each.name))
    return [each for each in found if collective in (None, each.collective)]


def find_algorithm(collective: str, name: str) -> Algorithm:
    """Return one algorithm.

    Raises:
        InvalidArgument: there is none of that name; lists those there are.
    """
    _load()
    if collective not in SEMANTICS:
        raise InvalidArgument(unknown("collective", collective, SEMANTICS))
    try:
        return _found[collective, name]
    except KeyError:
        names = [each.name for each in algorithms(collective)]
        raise InvalidArgument(
            f"{collective} has no algorithm {name!r}; it has {', '.join(names)}{did_you_mean(name, names)}"
        ) from None
