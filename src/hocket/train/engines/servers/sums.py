"""What a parameter server does with gradients: it adds those of all ranks, in the order of ranks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import torch

from hocket.train.engines.servers.refused import Refused


@dataclass
class _Sum:
    """The sum of one parcel in one step.

    Args:
        step: number of the step.
        total: sum of the first `num_added` ranks.
        early: elements of later ranks, which wait for their turn.
        done: gets the sum of all ranks, as bytes that follow a head.
    """

    step: int
    total: torch.Tensor | None = None
    num_added: int = 0
    early: dict[int, torch.Tensor] = field(default_factory=dict)
    done: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Sums:
    """Sums of parcels over ranks, step after step.

    Whatever rank's elements come first, they are added in the order of ranks: sums are the same in every run.

    Args:
        num_ranks: number of ranks.
        parcels: number of elements and data type of each parcel of this server, by the parcel's number.
    """

    def __init__(self, num_ranks: int, parcels: dict[int, tuple[int, torch.dtype]]) -> None:
        self._num_ranks = num_ranks
        self._parcels = parcels
        self._sums: dict[int, _Sum] = {}

    async def add(self, rank: int, parcel: int, step: int, elements: memoryview) -> bytes:
        """Add a rank's elements of a parcel; return the sum over all ranks, as soon as they have come.

        Raises:
            Refused: the call does not fit the ones before.
        """
        if parcel not in self._parcels or not 0 <= rank < self._num_ranks:
            raise Refused(f"this server has no parcel {parcel} of rank {rank}")
        numel, dtype = self._parcels[parcel]
        if len(elements) != numel * dtype.itemsize:
            raise Refused(f"parcel {parcel} has {numel * dtype.itemsize} bytes, not {len(elements)}")
        current = self._sums.setdefault(parcel, _Sum(0))
        if step != current.step or rank < current.num_added or rank in current.early:
            raise Refused(
                f"rank {rank} sent gradients of step {step} for parcel {parcel}, which is in step {current.step}: "
                "they are stale, and are dropped"
            )
        current.early[rank] = torch.frombuffer(elements, dtype=dtype)
        while (elements_next := current.early.pop(current.num_added, None)) is not None:
            current.total = elements_next.clone() if current.total is None else current.total.add_(elements_next)
            current.num_added += 1
        if current.num_added == self._num_ranks:
            assert current.total is not None
            self._sums[parcel] = _Sum(step + 1)
            current.done.set_result(current.total.view(torch.uint8).numpy().tobytes())
        # A caller that gives up must not take the sum from the others.
        return await asyncio.shield(current.done)

    def late(self, parcel: int) -> list[int]:
        """Return the ranks whose elements of a parcel have not come in the present step."""
        current = self._sums.get(parcel)
        if current is None:
            return list(range(self._num_ranks))
        return [rank for rank in range(current.num_added, self._num_ranks) if rank not in current.early]
