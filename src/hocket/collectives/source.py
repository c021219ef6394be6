"""Build schedules for communicators from the names in calls and tuning tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from hocket.collectives.proof import verify
from hocket.collectives.registry import Algorithm, find_algorithm
from hocket.collectives.schedule import Schedule
from hocket.comm.policy import Group
from hocket.errors import InvalidArgument, InvalidType
from hocket.sim import Link

_NAMED = re.compile(r"(\w+)(?:\((.*)\))?\Z")
_PARAMETER = re.compile(r"\s*(\w+)\s*=\s*(\w+)\s*\Z")
# Numbers of blocks chosen by the model are rounded to these, so that different sizes share schedules.
_ROUND_NUMBERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def format_algorithm(name: str, parameters: Mapping[str, Any]) -> str:
    """Return the name of an algorithm with its parameters: "chain(num_blocks=8)"."""
    given = ", ".join(f"{key}={value}" for key, value in parameters.items())
    return f"{name}({given})" if given else name


def round_num_blocks(num_blocks: int) -> int:
    """Round a number of blocks chosen by the model to the nearest allowed number."""
    return min(_ROUND_NUMBERS, key=lambda each: abs(each - num_blocks))


def parse_algorithm(collective: str, text: str) -> tuple[Algorithm, dict[str, Any]]:
    """Parse the text of `format_algorithm`; parameters may be left out.

    Raises:
        InvalidArgument: the text has another form, or the algorithm or a parameter is unknown.
    """
    match = _NAMED.match(text)
    if match is None:
        raise InvalidArgument(f"algorithm must be a name such as 'ring' or 'chain(num_blocks=8)', got {text!r}")
    algorithm = find_algorithm(collective, match[1])
    parameters: dict[str, Any] = {}
    for part in (match[2] or "").split(","):
        if not part.strip():
            continue
        pair = _PARAMETER.match(part)
        if pair is None or pair[1] not in algorithm.parameters:
            known = ", ".join(algorithm.parameters) or "none"
            raise InvalidArgument(f"{part.strip()!r} is not a parameter of {algorithm.name}; its parameters: {known}")
        parameters[pair[1]] = int(pair[2]) if pair[2].isdecimal() else pair[2]
    return algorithm, parameters


class Schedules:
    """Builds schedules and proves that they are correct.

    Args:
        link_for: (number of hosts) -> link of the cost model that chooses a missing number of blocks.
    """

    def __init__(self, link_for: Callable[[int], Link]) -> None:
        self._link_for = link_for

    def complete(self, collective: str, algorithm: object, group: Group, nbytes: int) -> object:
        """Return the name of an algorithm with all its parameters; return a schedule unchanged.

        Args:
            collective: name of the collective.
            algorithm: argument of a call: a name or a `Schedule`.
            group: communicator; its hosts define the default levels of a hierarchy.
            nbytes: size of the array; for collectives with one block per rank, of all blocks together.

        Raises:
            InvalidType: `algorithm` is neither a name nor a `Schedule`.
            InvalidArgument: the algorithm is unknown, or the schedule is for another collective or number of ranks.
        """
        if isinstance(algorithm, Schedule):
            if (algorithm.collective, algorithm.num_ranks) != (collective, group.size):
                raise InvalidArgument(
                    f"the schedule must be for {collective} on {group.size} ranks, it is for {algorithm.collective} on "
                    f"{algorithm.num_ranks}"
                )
            return algorithm
        if not isinstance(algorithm, str):
            raise InvalidType(f"algorithm must be a name or a Schedule, got {type(algorithm).__name__}")
        registered, parameters = parse_algorithm(collective, algorithm)
        if "ranks_per_host" in registered.parameters:
            parameters.setdefault("ranks_per_host", group.ranks_per_host)
        if "num_blocks" in registered.parameters and "num_blocks" not in parameters:
            best = registered.best_num_blocks(self._link_for(group.num_hosts), group.size, nbytes, **parameters)
            parameters["num_blocks"] = round_num_blocks(best)
        return format_algorithm(registered.name, {**registered.parameters, **parameters})

    def build(self, collective: str, algorithm: object, num_ranks: int) -> tuple[str, Schedule]:
        """Build the schedule that `complete` returned, prove it, and return it with its name."""
        if isinstance(algorithm, Schedule):
            verify(algorithm)
            return format_algorithm(algorithm.algorithm, algorithm.parameters), algorithm
        return str(algorithm), _build_proven(collective, str(algorithm), num_ranks)


@lru_cache(maxsize=256)
def _build_proven(collective: str, text: str, num_ranks: int) -> Schedule:
    """Build and prove a schedule; communicators of one size share it."""
    algorithm, parameters = parse_algorithm(collective, text)
    schedule = algorithm.schedule(num_ranks, **parameters)
    verify(schedule)
    return schedule
