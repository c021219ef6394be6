"""The operations in a recorder, as records with names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hocket.trace.record import Record, decode_events
from hocket.trace.region import RecorderSnapshot

MOST_OPERATIONS = 4096
"""The latest operations of a process that its recorder always has."""
_IN_FLIGHT = ("issued", "started", "waited")


@dataclass(frozen=True)
class RecordedOperation:
    """One operation of another process.

    Args:
        communicator: label of its communicator, such as "world".
        rank: rank of the process in that communicator.
        record: the operation.

    Examples:
        >>> import os
        >>> with hk.init() as comm:
        ...     comm.barrier()
        ...     (place,) = hk.trace.find_recorders(os.getpid())
        ...     last = hk.trace.operations_in(place.read())[-1]
        >>> last.communicator, last.rank, last.record.op, last.is_in_flight
        ('world', 0, 'barrier', False)
    """

    communicator: str
    rank: int
    record: Record

    @property
    def is_in_flight(self) -> bool:
        """Whether it had not completed."""
        return self.record.state in _IN_FLIGHT


def operations_in(snapshot: RecorderSnapshot, most: int = MOST_OPERATIONS) -> list[RecordedOperation]:
    """Return the latest operations of a process, oldest first.

    Args:
        snapshot: what its recorder held.
        most: at most so many.

    Examples:
        >>> import os
        >>> with hk.init() as comm:
        ...     for _ in range(3):
        ...         comm.barrier()
        ...     (place,) = hk.trace.find_recorders(os.getpid())
        ...     [each.record.seq for each in hk.trace.operations_in(place.read(), most=2)]
        [2, 3]
    """
    events = snapshot.rings["operations"].events[-most:]
    return [_operation(snapshot, event.tobytes(), int(event["comm"])) for event in events]


def _operation(snapshot: RecorderSnapshot, event: bytes, comm: int) -> RecordedOperation:
    communicator = snapshot.communicators.get(comm)
    label, rank = (communicator.text, communicator.extra) if communicator else (f"communicator {comm}", -1)
    backends, algorithms = _DefinedNames(snapshot, "backend", comm, 0), _DefinedNames(snapshot, "algorithm", comm, 1)
    (record,) = decode_events(event, backends, algorithms)
    return RecordedOperation(label, rank, record)


class _DefinedNames(Sequence[str]):
    """Names by number; a number without a name stands for itself, because names may have found no room."""

    def __init__(self, snapshot: RecorderSnapshot, kind: str, comm: int, first: int) -> None:
        self._names = snapshot.names
        self._key = kind, comm
        self._first = first

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        kind, comm = self._key
        number = index + self._first
        return self._names.get((kind, comm, number), f"{kind} {number}")

    def __len__(self) -> int:
        return 1 << 16
