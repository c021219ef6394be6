"""A plain executor of schedules that only needs messages, so it works with any communicator.

The native core executes schedules itself (`algorithm=` of every collective), with more messages in flight. This
executor is for other communicators, and to study schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hocket.collectives.blocks import sizes_of
from hocket.collectives.schedule import Schedule
from hocket.collectives.semantics import parts_per_rank
from hocket.errors import InvalidArgument
from hocket.suggestions import did_you_mean

_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


class Handle(Protocol):
    """A message in flight."""

    def wait(self) -> object: ...


class MessageTransport(Protocol):
    """The methods of a communicator that the executor needs."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def isend(self, x: Any, dst: int, tag: int = 0) -> Handle: ...
    def irecv(self, x: Any, src: int, tag: int = 0) -> Handle: ...


def execute(
    schedule: Schedule,
    comm: MessageTransport,
    x: NDArray[Any],
    out: NDArray[Any] | None = None,
    *,
    op: str = "sum",
    root: int = 0,
    tag: int = 0,
) -> int:
    """Execute a schedule; all ranks must call it.

    Args:
        schedule: schedule for the number of ranks of the communicator.
        comm: communicator for the messages.
        x: one-dimensional array; updated in place by broadcast, reduce, all_reduce and scan, input of the others.
        out: one-dimensional result of all_gather, reduce_scatter and all_to_all.
        op: "sum", "prod", "min" or "max".
        root: root of broadcast and reduce.
        tag: tag of the messages.

    Returns:
        Number of bytes that this rank sent.

    Raises:
        InvalidArgument: the sizes or the number of ranks do not match.
    """
    if schedule.num_ranks != comm.size:
        raise InvalidArgument(f"the schedule is for {schedule.num_ranks} ranks, the communicator has {comm.size}")
    if op not in _REDUCTIONS:
        raise InvalidArgument(f"op must be one of {', '.join(_REDUCTIONS)}, got {op!r}{did_you_mean(op, _REDUCTIONS)}")
    rank = schedule.place_of(comm.rank, root)
    slots = _Slots(schedule, rank, x, out)
    mine = (schedule.sources == rank) | (schedule.destinations == rank)
    sent = 0
    for number in np.unique(schedule.rounds[mine]):
        rows = np.flatnonzero(mine & (schedule.rounds == number))
        from_here, to_here = schedule.sources[rows] == rank, schedule.destinations[rows] == rank
        outgoing = _by_peer(rows[from_here & ~to_here], schedule.destinations)
        incoming = _by_peer(rows[to_here & ~from_here], schedule.sources)
        local = rows[from_here & to_here]
        # A round reads all slots before it writes any.
        packed = {peer: slots.read(each) for peer, each in outgoing.items()}
        local_values = slots.read(local)
        received = {peer: np.empty(slots.length(each), x.dtype) for peer, each in incoming.items()}
        handles = [comm.irecv(each, schedule.rank_at(peer, root), tag) for peer, each in received.items() if len(each)]
        handles += [comm.isend(each, schedule.rank_at(peer, root), tag) for peer, each in packed.items() if len(each)]
        for handle in handles:
            handle.wait()
        sent += sum(each.nbytes for each in packed.values())
        for peer, each in received.items():
            slots.write(incoming[peer], each, _REDUCTIONS[op])
        slots.write(local, local_values, _REDUCTIONS[op])
    slots.finish()
    return sent


def _by_peer(rows: NDArray[np.int64], peers: NDArray[np.int32]) -> dict[int, NDArray[np.int64]]:
    return {int(peer): rows[peers[rows] == peer] for peer in np.unique(peers[rows])}


class _Slots:
    """The slots of a rank and their values."""

    def __init__(self, schedule: Schedule, rank: int, x: NDArray[Any], out: NDArray[Any] | None) -> None:
        self.schedule = schedule
        self.rank = rank
        self.x, self.out = x, out
        collective, n = schedule.collective, schedule.num_ranks
        with_blocks = collective in ("all_gather", "reduce_scatter", "all_to_all")
        if with_blocks and (out is None or out.dtype != x.dtype):
            raise InvalidArgument(
                f"{collective} needs an out of x's dtype {x.dtype}, got {None if out is None else out.dtype}"
            )
        num_items = len(x) * n if collective == "all_gather" else len(x)
        self.lengths = sizes_of(schedule, num_items)
        ends = np.concatenate(([0], np.cumsum(self.lengths)))
        self.values: dict[int, NDArray[Any]] = {}
        if (with_blocks and collective != "all_gather" and len(x) % n) or (
            out is not None and len(out) * (n if collective == "reduce_scatter" else 1) != num_items
        ):
            num_out = 0 if out is None else len(out)
            raise InvalidArgument(
                f"{collective} on {n} ranks: the sizes of x ({len(x)} items) and out ({num_out}) do not match"
            )
        if collective == "all_to_all":
            self.values = {block: part.copy() for block, part in enumerate(np.split(x, n))}
        elif collective == "all_gather":
            parts = parts_per_rank(schedule)
            first = rank * parts
            begin = ends[first]
            self.values = {
                block: x[ends[block] - begin : ends[block + 1] - begin].copy() for block in range(first, first + parts)
            }
        elif collective != "broadcast" or rank == 0:
            self.values = {block: x[ends[block] : ends[block + 1]].copy() for block in range(schedule.num_blocks)}
        self.is_root = rank == 0

    def length(self, rows: NDArray[np.int64]) -> int:
        return int(self.lengths[self.schedule.blocks[rows]].sum())

    def read(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        parts = [self.values[slot] for slot in self.schedule.source_slots[rows].tolist()]
        return np.concatenate(parts) if parts else self.x[:0]

    def write(self, rows: NDArray[np.int64], content: NDArray[Any], reduction: Callable[[Any, Any], Any]) -> None:
        begin = 0
        for row in rows.tolist():
            end = begin + int(self.lengths[self.schedule.blocks[row]])
            slot = int(self.schedule.destination_slots[row])
            part = content[begin:end]
            self.values[slot] = reduction(self.values[slot], part) if self.schedule.reduces[row] else part
            begin = end

    def finish(self) -> None:
        collective, n = self.schedule.collective, self.schedule.num_ranks
        blocks = range(self.schedule.num_blocks)
        if collective == "reduce" and not self.is_root:
            return
        if collective == "all_to_all":
            self._put(self.out, range(n, 2 * n))
        elif collective == "all_gather":
            self._put(self.out, blocks)
        elif collective == "reduce_scatter":
            parts = parts_per_rank(self.schedule)
            self._put(self.out, range(self.rank * parts, (self.rank + 1) * parts))
        elif collective != "barrier":
            self._put(self.x, blocks)

    def _put(self, out: NDArray[Any] | None, slots: range) -> None:
        assert out is not None
        out[:] = np.concatenate([self.values[slot] for slot in slots])
