"""A collective algorithm as data: rounds of transfers of blocks between ranks.

The array of an operation is divided into *blocks*, and every rank has *slots*, each of which holds one block. A
transfer moves the block in a slot of its source to a slot of its destination, where it replaces what is there or is
reduced into it. All transfers of a round read before any of them writes; those with the same source and destination are
one message. Ranks are counted from the root of the operation, which is rank 0 of the schedule.

What slots stand for (`hocket.collectives.semantics`): the first ones are the arrays of the operation; those behind them
are scratch memory.
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
    """Transfers of one round, as columns of equal length; anything that broadcasts to that.

    Args:
        sources, destinations: ranks; where both are equal a block is moved within a rank, and nothing is sent.
        blocks: which block is moved.
        source_slots, destination_slots: where it is read and written; by default slots with the number of the block.
        reduces: whether it is reduced into what its destination holds.
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
        collective: what it does, such as "all_reduce".
        num_ranks: that take part.
        num_blocks: of the whole operation.
        num_slots: of every rank.
        rounds, sources, destinations, blocks, source_slots, destination_slots: int32, one entry a transfer.
        reduces: bool, one entry a transfer.
        group_size: ranks in a row that stay together, as those of a host, wherever the root is; all, where it does not
            matter.
        ports: messages that a rank may send, and as many that it may receive, in one round.
        algorithm: name of what built it.
        parameters: that it was built with.
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
        """Rounds up to the last transfer."""
        return int(self.rounds[-1]) + 1 if len(self) else 0

    @cached_property
    def round_offsets(self) -> NDArray[np.int64]:
        """Where each round begins in the columns, and the end."""
        return np.searchsorted(self.rounds, np.arange(self.num_rounds + 1))

    @cached_property
    def is_remote(self) -> NDArray[np.bool_]:
        """Which transfers are between two ranks."""
        return np.not_equal(self.sources, self.destinations)

    @cached_property
    def message_starts(self) -> NDArray[np.int64]:
        """Where each message begins; transfers within a rank are messages to itself."""
        if not len(self):
            return np.zeros(0, np.int64)
        key = (self.rounds.astype(np.int64) * self.num_ranks + self.sources) * self.num_ranks + self.destinations
        return np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))

    def place_of(self, rank: int, root: int) -> int:
        """Return the rank of the schedule that a rank of the communicator has."""
        group = self.group_size
        return (rank // group - root // group) % (self.num_ranks // group) * group + (rank - root) % group

    def rank_at(self, place: int, root: int) -> int:
        """Return the rank of the communicator that has a rank of the schedule."""
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
    """Make a schedule out of its rounds.

    Args:
        collective: name of the operation.
        num_ranks: of the schedule.
        num_blocks: of the whole operation.
        rounds: the transfers of each round, in order; rounds without transfers do not count.
        num_slots: of every rank; by default as many as there are blocks.
        ports: messages that a rank may send, and receive, in one round.

    Raises:
        InvalidSchedule: a column has another length than the others, or a number out of range.
    """
    num_slots = num_blocks if num_slots is None else num_slots
    parts: list[list[NDArray[Any]]] = []
    number = 0
    for each in rounds:
        filled = [_columns_of(part, number) for part in ([each] if isinstance(each, Transfers) else each)]
        filled = [part for part in filled if len(part[0])]
        parts += filled
        number += bool(filled)
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
    """Make a schedule out of whole columns, in any order of transfers.

    Raises:
        InvalidSchedule: a column is missing, has another length than the others, or a number out of range; or groups do
            not divide the ranks.
    """
    group_size = num_ranks if group_size is None else group_size
    if group_size < 1 or num_ranks % group_size:
        raise InvalidSchedule(f"{num_ranks} ranks do not lie in groups of {group_size}")
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise InvalidSchedule(f"a schedule has the columns {', '.join(COLUMNS)}; there is no {missing[0]}")
    arrays = {name: np.asarray(columns[name], bool if name == "reduces" else np.int32) for name in COLUMNS}
    lengths = {name: array.shape for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or len(next(iter(lengths.values()))) != 1:
        raise InvalidSchedule(f"all columns of a schedule have one length, not {lengths}")
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
            raise InvalidSchedule(f"{name} are 0 to {limit - 1} here, not {row[name]}, in the transfer {row}")
    order = np.lexsort((arrays["destinations"], arrays["sources"], arrays["rounds"]))
    ordered: dict[str, Any] = {name: array[order] for name, array in arrays.items()}
    return Schedule(collective, num_ranks, num_blocks, num_slots, **ordered, group_size=group_size, ports=ports)


def _columns_of(part: Transfers, number: int) -> list[NDArray[Any]]:
    slots = part.blocks if part.source_slots is None else part.source_slots
    into = part.blocks if part.destination_slots is None else part.destination_slots
    columns = np.broadcast_arrays(number, part.sources, part.destinations, part.blocks, slots, into, part.reduces)
    return [np.ravel(column) for column in columns]


def renumbered(schedule: Schedule, **changes: Any) -> Schedule:
    """Return the schedule with some columns replaced, sorted again."""
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
