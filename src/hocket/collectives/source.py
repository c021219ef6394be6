"""Schedules for communicators, by the names under which calls and tables ask for them."""

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
# Numbers of blocks that the model chooses are rounded to these, so that sizes share schedules.
_ROUND_NUMBERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def format_algorithm(name: str, parameters: Mapping[str, Any]) -> str:
    """Return the name of an algorithm with its parameters: "chain(num_blocks=8)"."""
    given = ", ".join(f"{key}={value}" for key, value in parameters.items())
    return f"{name}({given})" if given else name


def round_num_blocks(num_blocks: int) -> int:
    """Return the nearest of the numbers of blocks that are used where the model chooses."""
    return min(_ROUND_NUMBERS, key=lambda each: abs(each - num_blocks))


def parse_algorithm(collective: str, text: str) -> tuple[Algorithm, dict[str, Any]]:
    """Read what `format_algorithm` wrote; parameters may be left out.

    Raises:
        InvalidArgument: the text is none of that form, or names what is not there.
    """
    match = _NAMED.match(text)
    if match is None:
        raise InvalidArgument(f"algorithm is a name, with parameters as in 'chain(num_blocks=8)' if any, not {text!r}")
    algorithm = find_algorithm(collective, match[1])
    parameters: dict[str, Any] = {}
    for part in (match[2] or "").split(","):
        if not part.strip():
            continue
        pair = _PARAMETER.match(part)
        if pair is None or pair[1] not in algorithm.parameters:
            known = ", ".join(algorithm.parameters) or "none"
            raise InvalidArgument(f"{part.strip()!r} is no parameter of {algorithm.name}; it has {known}")
        parameters[pair[1]] = int(pair[2]) if pair[2].isdecimal() else pair[2]
    return algorithm, parameters


class Schedules:
    """Builds and proves schedules.

    Args:
        link_for: the link by which the number of blocks is chosen where none is given, by number of hosts.
    """

    def __init__(self, link_for: Callable[[int], Link]) -> None:
        self._link_for = link_for

    def complete(self, collective: str, algorithm: object, group: Group, nbytes: int) -> object:
        """Return the name of an algorithm with all its parameters; a schedule as it is.

        Args:
            collective: name of the operation.
            algorithm: what a call gave: a name, or a `Schedule`.
            group: the communicator, whose hosts are the levels of a hierarchy where none are given.
            nbytes: of the array; where there is a block for every rank, of all of them together.

        Raises:
            InvalidType: it is neither.
            InvalidArgument: there is no such algorithm, or it cannot do so many ranks; or the schedule is of another
                collective or number of ranks.
        """
        if isinstance(algorithm, Schedule):
            if (algorithm.collective, algorithm.num_ranks) != (collective, group.size):
                raise InvalidArgument(
                    f"the schedule is of {algorithm.collective} between {algorithm.num_ranks} ranks, not of "
                    f"{collective} between {group.size}"
                )
            return algorithm
        if not isinstance(algorithm, str):
            raise InvalidType(f"algorithm must be a name or a Schedule, not {type(algorithm).__name__}")
        found, parameters = parse_algorithm(collective, algorithm)
        if "ranks_per_host" in found.parameters:
            parameters.setdefault("ranks_per_host", group.ranks_per_host)
        if "num_blocks" in found.parameters and "num_blocks" not in parameters:
            best = found.best_num_blocks(self._link_for(group.num_hosts), group.size, nbytes, **parameters)
            parameters["num_blocks"] = round_num_blocks(best)
        return format_algorithm(found.name, {**found.parameters, **parameters})

    def build(self, collective: str, algorithm: object, num_ranks: int) -> tuple[str, Schedule]:
        """Build what `complete` returned, prove it, and return it with its name."""
        if isinstance(algorithm, Schedule):
            verify(algorithm)
            return format_algorithm(algorithm.algorithm, algorithm.parameters), algorithm
        return str(algorithm), _build_proven(collective, str(algorithm), num_ranks)


@lru_cache(maxsize=256)
def _build_proven(collective: str, text: str, num_ranks: int) -> Schedule:
    """Communicators of one size share what is built."""
    found, parameters = parse_algorithm(collective, text)
    schedule = found.schedule(num_ranks, **parameters)
    verify(schedule)
    return schedule
