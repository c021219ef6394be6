"""A collective algorithm as data: rounds of transfers of blocks between ranks.

The array of an operation is divided into *blocks*, and every rank has *slots* that hold one block each. A transfer
moves the block in a slot of its source to a slot of its destination, where it replaces the content or is reduced into
it. In a round, all transfers read before any of them writes; transfers with the same source and destination form one
message. Ranks are counted from the root of the operation, which is rank 0 of the schedule.

The first slots are the arrays of the operation (`hocket.collectives.semantics`), the others are scratch memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidSchedule

Column: TypeAlias = NDArray[np.int32]
COLUMNS: Final = ("rounds", "sources", "destinations", "blocks", "source_slots", "destination_slots", "reduces")


@dataclass(frozen=True, eq=False)
class Transfers:
    """Transfers of one round, as columns that broadcast to equal length.

    Args:
        sources, destinations: ranks; if both are equal, the block moves within the rank, without a message.
        blocks: numbers of the moved blocks.
        source_slots, destination_slots: slots to read and write; by default those with the number of the block.
        reduces: whether the block is reduced into the content of the destination slot.

    Examples:
        >>> ring = hk.collectives.Transfers([0, 1, 2], [1, 2, 0], blocks=0, reduces=True)
        >>> hk.collectives.make_schedule("all_reduce", 3, 1, [ring])
        <Schedule all_reduce custom: 3 ranks, 1 blocks, 1 rounds, 3 transfers>
    """

    sources: Any
    destinations: Any
    blocks: Any
    source_slots: Any = None
    destination_slots: Any = None
    reduces: Any = False


Rounds: TypeAlias = Iterable[Transfers | Sequence[Transfers]]


@dataclass(frozen=True, eq=False)
class Schedule:
    """A table of transfers, sorted by round, source and destination.

    Args:
        collective: name of the collective, such as "all_reduce".
        num_ranks: number of ranks.
        num_blocks: blocks of the whole operation.
        num_slots: slots of every rank.
        rounds, sources, destinations, blocks, source_slots, destination_slots: int32, one entry per transfer.
        reduces: bool, one entry per transfer.
        group_size: consecutive ranks that stay together for any root, such as those of a host; num_ranks if groups do
            not matter.
        ports: messages that a rank may send, and also receive, in one round.
        algorithm: name of the algorithm that built it.
        parameters: parameters of the algorithm.

    Examples:
        >>> schedule = hk.collectives.find_algorithm("broadcast", "binomial").schedule(4)
        >>> schedule
        <Schedule broadcast binomial: 4 ranks, 1 blocks, 2 rounds, 3 transfers>
        >>> list(zip(schedule.rounds.tolist(), schedule.sources.tolist(), schedule.destinations.tolist()))
        [(0, 0, 2), (1, 0, 1), (1, 2, 3)]
    """

    collective: str
    num_ranks: int
    num_blocks: int
    num_slots: int
    rounds: Column
    sources: Column
    destinations: Column
    blocks: Column
    source_slots: Column
    destination_slots: Column
    reduces: NDArray[np.bool_]
    group_size: int
    ports: int = 1
    algorithm: str = "custom"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rounds)

    @property
    def num_rounds(self) -> int:
        """Number of rounds."""
        return int(self.rounds[-1]) + 1 if len(self) else 0

    @cached_property
    def round_offsets(self) -> NDArray[np.int64]:
        """Index of the first transfer of each round, and the number of transfers."""
        return np.searchsorted(self.rounds, np.arange(self.num_rounds + 1))

    @cached_property
    def is_remote(self) -> NDArray[np.bool_]:
        """Whether each transfer is between different ranks."""
        return np.not_equal(self.sources, self.destinations)

    @cached_property
    def message_starts(self) -> NDArray[np.int64]:
        """Index of the first transfer of each message; transfers within a rank count as messages to itself."""
        if not len(self):
            return np.zeros(0, np.int64)
        key = (self.rounds.astype(np.int64) * self.num_ranks + self.sources) * self.num_ranks + self.destinations
        return np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))

    def place_of(self, rank: int, root: int) -> int:
        """Return the rank in the schedule of a rank of the communicator."""
        group = self.group_size
        return (rank // group - root // group) % (self.num_ranks // group) * group + (rank - root) % group

    def rank_at(self, place: int, root: int) -> int:
        """Return the rank in the communicator of a rank of the schedule."""
        group = self.group_size
        return (place // group + root // group) % (self.num_ranks // group) * group + (place + root) % group

    def __repr__(self) -> str:
        given = "".join(f", {name}={value}" for name, value in self.parameters.items())
        return (
            f"<Schedule {self.collective} {self.algorithm}{given}: {self.num_ranks} ranks, {self.num_blocks} blocks, "
            f"{self.num_rounds} rounds, {len(self)} transfers>"
        )


def make_schedule(
    collective: str, num_ranks: int, num_blocks: int, rounds: Rounds, *, num_slots: int | None = None, ports: int = 1
) -> Schedule:
    """Make a schedule from its rounds.

    Args:
        collective: name of the collective.
        num_ranks: number of ranks.
        num_blocks: blocks of the whole operation.
        rounds: transfers of each round, in order; rounds without transfers are skipped.
        num_slots: slots of every rank; by default the number of blocks.
        ports: messages that a rank may send, and also receive, in one round.

    Returns:
        The schedule; `verify` proves that it is correct.

    Raises:
        InvalidSchedule: columns have different lengths, or a number is out of range.

    Examples:
        >>> from hocket.collectives import Transfers, make_schedule, verify
        >>> exchange = Transfers([0, 1], [1, 0], blocks=0, reduces=True)
        >>> schedule = make_schedule("all_reduce", 2, 1, [exchange])
        >>> verify(schedule)
        >>> schedule.num_rounds, len(schedule)
        (1, 2)
    """
    num_slots = num_blocks if num_slots is None else num_slots
    parts: list[list[NDArray[Any]]] = []
    number = 0
    for each in rounds:
        columns_of_round = [_columns_of(part, number) for part in ([each] if isinstance(each, Transfers) else each)]
        columns_of_round = [part for part in columns_of_round if len(part[0])]
        parts += columns_of_round
        number += bool(columns_of_round)
    if parts:
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    else:
        columns = [np.zeros(0, np.int32) for _ in COLUMNS]
    return from_columns(
        collective, num_ranks, num_blocks, num_slots, dict(zip(COLUMNS, columns, strict=True)), ports=ports
    )


def from_columns(
    collective: str,
    num_ranks: int,
    num_blocks: int,
    num_slots: int,
    columns: Mapping[str, Any],
    *,
    ports: int = 1,
    group_size: int | None = None,
) -> Schedule:
    """Make a schedule from whole columns, with transfers in any order.

    Raises:
        InvalidSchedule: a column is missing, columns have different lengths, a number is out of range, or the group
            size does not divide the number of ranks.
    """
    group_size = num_ranks if group_size is None else group_size
    if group_size < 1 or num_ranks % group_size:
        raise InvalidSchedule(f"group_size must divide the number of ranks, {num_ranks}; got {group_size}")
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise InvalidSchedule(f"a schedule needs the columns {', '.join(COLUMNS)}; {missing[0]} is missing")
    arrays = {name: np.asarray(columns[name], bool if name == "reduces" else np.int32) for name in COLUMNS}
    lengths = {name: array.shape for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or len(next(iter(lengths.values()))) != 1:
        raise InvalidSchedule(f"all columns of a schedule must have the same length, got {lengths}")
    for name, limit in (
        ("rounds", 1 << 31),
        ("sources", num_ranks),
        ("destinations", num_ranks),
        ("blocks", num_blocks),
        ("source_slots", num_slots),
        ("destination_slots", num_slots),
    ):
        wrong = np.flatnonzero((arrays[name] < 0) | (arrays[name] >= limit))
        if len(wrong):
            row = {key: array[wrong[0]].item() for key, array in arrays.items()}
            raise InvalidSchedule(f"{name} must be 0 to {limit - 1}, got {row[name]} in the transfer {row}")
    order = np.lexsort((arrays["destinations"], arrays["sources"], arrays["rounds"]))
    ordered: dict[str, Any] = {name: array[order] for name, array in arrays.items()}
    return Schedule(collective, num_ranks, num_blocks, num_slots, **ordered, group_size=group_size, ports=ports)


def _columns_of(part: Transfers, number: int) -> list[NDArray[Any]]:
    slots = part.blocks if part.source_slots is None else part.source_slots
    target_slots = part.blocks if part.destination_slots is None else part.destination_slots
    columns = np.broadcast_arrays(
        number, part.sources, part.destinations, part.blocks, slots, target_slots, part.reduces
    )
    return [np.ravel(column) for column in columns]


def renumbered(schedule: Schedule, **changes: Any) -> Schedule:
    """Return the schedule with some columns or fields replaced, and sorted again."""
    columns = {name: changes.pop(name, getattr(schedule, name)) for name in COLUMNS}
    group_size = schedule.group_size if "num_ranks" not in changes else None
    fresh = from_columns(
        changes.pop("collective", schedule.collective),
        changes.pop("num_ranks", schedule.num_ranks),
        changes.pop("num_blocks", schedule.num_blocks),
        changes.pop("num_slots", schedule.num_slots),
        columns,
        ports=changes.pop("ports", schedule.ports),
        group_size=changes.pop("group_size", group_size),
    )
    return replace(fresh, algorithm=schedule.algorithm, parameters=schedule.parameters, **changes)
