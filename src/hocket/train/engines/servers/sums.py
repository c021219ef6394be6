"""What a parameter server does with gradients: it adds those of all ranks, in the order of ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from hocket.train.engines.servers.messages import Content
from hocket.train.engines.servers.refused import Refused
from hocket.train.engines.servers.shared_memory import MemoryBlock


@dataclass
class _Sum:
    """The sum of one parcel in one step.

    Args:
        step: number of the step.
        total: sum of the first `num_added` ranks; with one, their own elements.
        early: elements of later ranks, which wait for their turn.
        asked, arrived: of the ranks whose elements a library brings, those that have called, and those whose elements
            are there.
        done: gets the answer with the sum of all ranks.
    """

    step: int
    total: torch.Tensor | None = None
    num_added: int = 0
    early: dict[int, torch.Tensor] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    arrived: set[int] = field(default_factory=set)
    done: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Carrier(Protocol):
    """How elements come to a server, and how sums go back."""

    def take(self, rank: int, parcel: int, content: memoryview) -> torch.Tensor:
        """Return a rank's elements of a parcel, which came with `content` behind the head.

        Raises:
            Refused: it has another size.
        """

    def room(self, parcel: int) -> torch.Tensor:
        """Return where the sum of a parcel goes."""

    def give(self, total: torch.Tensor) -> Content:
        """Return what follows the head of the answer."""


class ByMessage:
    """Elements and sums are in the messages.

    Args:
        parcels: number of elements and data type of each parcel of this server, by the parcel's number.
    """

    def __init__(self, parcels: dict[int, tuple[int, torch.dtype]]) -> None:
        self._parcels = parcels

    def take(self, rank: int, parcel: int, content: memoryview) -> torch.Tensor:
        """See `Carrier`."""
        numel, dtype = self._parcels[parcel]
        if len(content) != numel * dtype.itemsize:
            raise Refused(f"parcel {parcel} has {numel * dtype.itemsize} bytes, not {len(content)}")
        return torch.frombuffer(content, dtype=dtype)

    def room(self, parcel: int) -> torch.Tensor:
        """See `Carrier`."""
        numel, dtype = self._parcels[parcel]
        return torch.empty(numel, dtype=dtype)

    def give(self, total: torch.Tensor) -> Content:
        """See `Carrier`."""
        return total.view(torch.uint8).numpy().data


class ByMemory:
    """Elements are in the ranks' blocks of memory, and sums go into the server's.

    Until a rank has got a sum it leaves its elements alone; and it sends the next ones when it has read the sum.

    Args:
        parcels: see `ByMessage`.
        places: for each of all parcels, its first byte in every block.
        of_ranks: the ranks' blocks.
        own: the server's block.
    """

    def __init__(
        self,
        parcels: dict[int, tuple[int, torch.dtype]],
        places: Sequence[int],
        of_ranks: Sequence[MemoryBlock],
        own: MemoryBlock,
    ) -> None:
        self._elements = {
            number: [block.tensor(places[number], numel, dtype) for block in of_ranks]
            for number, (numel, dtype) in parcels.items()
        }
        self._totals = {number: own.tensor(places[number], *parcel) for number, parcel in parcels.items()}

    def take(self, rank: int, parcel: int, content: memoryview) -> torch.Tensor:
        """See `Carrier`."""
        if len(content):
            raise Refused(f"{len(content)} bytes came with parcel {parcel}, whose elements are in shared memory")
        return self._elements[parcel][rank]

    def room(self, parcel: int) -> torch.Tensor:
        """See `Carrier`."""
        return self._totals[parcel]

    def give(self, total: torch.Tensor) -> Content:
        """See `Carrier`."""
        return b""


class Sums:
    """Sums of parcels over ranks, step after step.

    Whatever rank's elements come first, they are added in the order of ranks: sums are the same in every run.

    Args:
        num_ranks: number of ranks.
        parcels: numbers of this server's parcels.
        carrier: how elements come, and sums go.
        pack: makes the answer to all ranks of a parcel, a step, and what follows the head.
        relayed: ranks whose elements come by a library, and are there when `arrive` was called.
    """

    def __init__(
        self,
        num_ranks: int,
        parcels: Collection[int],
        carrier: Carrier,
        pack: Callable[[int, int, Content], bytes],
        relayed: Collection[int] = (),
    ) -> None:
        self._relayed = set(relayed)
        self._num_ranks = num_ranks
        self._parcels = set(parcels)
        self._carrier = carrier
        self._pack = pack
        self._sums: dict[int, _Sum] = {}

    async def add(self, rank: int, parcel: int, step: int, content: memoryview) -> bytes:
        """Add a rank's elements of a parcel, which came with `content`; return the answer as soon as those
        of all ranks have come.

        Raises:
            Refused: the call does not fit the ones before.
        """
        if parcel not in self._parcels or not 0 <= rank < self._num_ranks:
            raise Refused(f"this server has no parcel {parcel} of rank {rank}")
        current = self._sums.setdefault(parcel, _Sum(0))
        if rank in self._relayed:
            self._check_step(current, rank, parcel, step)
            current.asked.add(rank)
            if rank not in current.arrived:  # `arrive` adds them
                return await asyncio.shield(current.done)
        self._add(current, rank, parcel, step, content)
        # A caller that gives up must not take the sum from the others.
        return await asyncio.shield(current.done)

    async def arrive(self, rank: int, parcel: int, step: int) -> bytes:
        """Add a rank's elements of a parcel, which a library has brought, as soon as the rank has asked for it too.

        Raises:
            Refused: the call does not fit the ones before.
        """
        if parcel not in self._parcels or rank not in self._relayed:
            raise Refused(f"no library brings parcel {parcel} of rank {rank} to this server")
        current = self._sums.setdefault(parcel, _Sum(0))
        self._check_step(current, rank, parcel, step)
        current.arrived.add(rank)
        if rank in current.asked:
            self._add(current, rank, parcel, step, memoryview(b""))
        return await asyncio.shield(current.done)

    def _check_step(self, current: _Sum, rank: int, parcel: int, step: int) -> None:
        if step != current.step or rank < current.num_added or rank in current.early:
            raise Refused(
                f"rank {rank} sent gradients of step {step} for parcel {parcel}, which is in step {current.step}: "
                "they are stale, and are dropped"
            )

    def _add(self, current: _Sum, rank: int, parcel: int, step: int, content: memoryview) -> None:
        self._check_step(current, rank, parcel, step)
        current.early[rank] = self._carrier.take(rank, parcel, content)
        while (elements := current.early.pop(current.num_added, None)) is not None:
            if current.total is None:
                current.total = elements if self._num_ranks > 1 else self._carrier.room(parcel).copy_(elements)
            elif current.num_added == 1:
                current.total = torch.add(current.total, elements, out=self._carrier.room(parcel))
            else:
                current.total += elements
            current.num_added += 1
        if current.num_added == self._num_ranks:
            assert current.total is not None
            self._sums[parcel] = _Sum(step + 1)
            current.done.set_result(self._pack(parcel, step, self._carrier.give(current.total)))

    def late(self, parcel: int) -> list[int]:
        """Return the ranks whose elements of a parcel have not come in the present step."""
        current = self._sums.get(parcel)
        if current is None:
            return list(range(self._num_ranks))
        return [rank for rank in range(current.num_added, self._num_ranks) if rank not in current.early]
