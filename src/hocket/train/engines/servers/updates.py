"""What a parameter server does that has the parameters: it applies gradients, and answers with the parameters."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import torch

from hocket.train.engines.servers.messages import Content, part_nbytes
from hocket.train.engines.servers.optimizers import ServerUpdate
from hocket.train.engines.servers.refused import Refused


@dataclass
class _Parcel:
    """The state of one message's tensors.

    Args:
        tensors: their numbers.
        numel: number of elements of each.
        dtype: their data type.
        version: number of updates.
        seen: by rank, the version that it was sent last.
        steps: by rank, the step of its last gradients.
        taken: gradients of the ranks that were in time for the next update, summed, by tensor.
        ranks: those ranks.
        done: gets the parameters after the next update.
    """

    tensors: list[int]
    numel: list[int]
    dtype: torch.dtype
    version: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    taken: dict[int, torch.Tensor] = field(default_factory=dict)
    ranks: list[int] = field(default_factory=list)
    done: asyncio.Future[Content] | None = None


class Updates:
    """Parameters of a server, which it changes by the gradients of the ranks.

    Args:
        num_ranks: number of ranks.
        num_required: number of ranks whose gradients make one update, by their mean; those that come later are stale,
            and are dropped (Chen et al., "Revisiting distributed synchronous SGD", arXiv 1604.00981). None: the
            gradients of each rank are an update of their own, as they come (asynchronous).
        parcels: numbers and data type of each message's tensors, by its number.
        update: applies gradients.

    Attributes:
        num_stale: number of gradients of a rank that were dropped.
    """

    def __init__(
        self,
        num_ranks: int,
        num_required: int | None,
        parcels: dict[int, tuple[list[int], torch.dtype]],
        update: ServerUpdate,
    ) -> None:
        self._num_ranks, self._num_required = num_ranks, num_required
        self._update = update
        self._left: set[int] = set()
        self._told: dict[int, int] = {}
        """By rank, the number of its last settings."""
        self._parcels = {
            number: _Parcel(tensors, [update.values[each].numel() for each in tensors], dtype)
            for number, (tensors, dtype) in parcels.items()
        }
        self.num_stale = 0

    async def add(self, rank: int, parcel: int, step: int, content: memoryview) -> Content:
        """Take a rank's gradients: a byte for each tensor, 1 if it has one, then all elements; return the parameters.

        Raises:
            Refused: the call does not fit the ones before.
        """
        if parcel not in self._parcels or not 0 <= rank < self._num_ranks:
            raise Refused(f"this server has no parcel {parcel} of rank {rank}")
        state = self._parcels[parcel]
        count = len(state.tensors)
        if len(content) != count + sum(state.numel) * state.dtype.itemsize:
            raise Refused(f"parcel {parcel} has another size than {len(content)} bytes")
        if step <= state.steps.get(rank, -1):
            raise Refused(f"rank {rank} has sent gradients of step {step} for parcel {parcel} before")
        state.steps[rank] = step
        elements = torch.frombuffer(content[count:], dtype=state.dtype)
        parts = torch.split(elements, state.numel)
        given = {number: part for number, part, has in zip(state.tensors, parts, content[:count], strict=True) if has}
        if self._num_required is None:
            self._update.apply({number: part.clone() for number, part in given.items()}, state.tensors)
            return self._values(state)
        if state.seen.get(rank, 0) != state.version:
            self.num_stale += 1
            state.seen[rank] = state.version
            return self._values(state)
        for number, part in given.items():
            if number in state.taken:
                state.taken[number] += part
            else:
                state.taken[number] = part.clone()
        state.ranks.append(rank)
        state.done = state.done or asyncio.get_running_loop().create_future()
        done = state.done
        self._try_update(state)
        return await asyncio.shield(done)

    def leave(self, rank: int) -> None:
        """Wait no longer for gradients of a rank whose training is over.

        Raises:
            Refused: there is no such rank.
        """
        if not 0 <= rank < self._num_ranks:
            raise Refused(f"there is no rank {rank}")
        self._left.add(rank)
        for state in self._parcels.values():
            self._try_update(state)

    def values(self, parcel: int) -> Content:
        """Return the parameters of a parcel.

        Raises:
            Refused: there is no such parcel.
        """
        if parcel not in self._parcels:
            raise Refused(f"this server has no parcel {parcel}")
        return self._values(self._parcels[parcel])

    def state(self, parcel: int, part: int) -> bytes:
        """Return a part of the optimizer's state of a parcel: `part_nbytes` bytes, or what is left.

        Raises:
            Refused: there is no such parcel or part.
        """
        if parcel not in self._parcels:
            raise Refused(f"this server has no parcel {parcel}")
        of_parcel = self._parcels[parcel]
        whole = self._update.state(of_parcel.tensors)
        nbytes = part_nbytes(sum(of_parcel.numel) * of_parcel.dtype.itemsize)
        if part * nbytes >= len(whole):
            raise Refused(f"the state of parcel {parcel} has {len(whole)} bytes, and no part {part}")
        return whole[part * nbytes : (part + 1) * nbytes]

    def set(self, rank: int, number: int, content: memoryview) -> None:
        """Take over the settings of a rank's optimizer.

        Args:
            rank: the rank.
            number: how often it has told something before.
            content: the settings, as JSON.

        Raises:
            Refused: they do not fit, or are older than others of this rank.
        """
        if not 0 <= rank < self._num_ranks or number <= self._told.get(rank, -1):
            raise Refused(f"settings {number} of rank {rank} have come before")
        self._told[rank] = number
        try:
            self._update.set(json.loads(bytes(content)))
        except (ValueError, TypeError) as error:
            raise Refused(f"settings of an optimizer do not fit: {error}") from None

    def late(self, parcel: int) -> list[int]:
        """Return the ranks whose gradients the next update lacks."""
        if self._num_required is None:
            return []  # each rank's gradients are an update of their own
        state = self._parcels.get(parcel)
        return [rank for rank in range(self._num_ranks) if state is None or rank not in state.ranks]

    def _try_update(self, state: _Parcel) -> None:
        """Update if all gradients are there; an error of the optimizer goes to all ranks that wait."""
        done, taken = state.done, list(state.ranks)
        try:
            self._update_if_complete(state)
        except Exception as error:
            assert done is not None
            done.set_exception(Refused(f"the optimizer failed with gradients of ranks {taken}: {error!r}"))
            state.taken, state.ranks, state.done = {}, [], None

    def _update_if_complete(self, state: _Parcel) -> None:
        if self._num_required is None or state.done is None:
            return
        if len(state.ranks) < min(self._num_required, self._num_ranks - len(self._left)):
            return
        means = {number: total / len(state.ranks) for number, total in state.taken.items()}
        self._update.apply(means, state.tensors)
        state.version += 1
        for each in state.ranks:
            state.seen[each] = state.version
        state.done.set_result(self._values(state))
        state.taken, state.ranks, state.done = {}, [], None

    def _values(self, state: _Parcel) -> Content:
        values = self._update.values
        flat = torch.cat([values[number].detach().reshape(-1) for number in state.tensors])
        return flat.view(torch.uint8).numpy().data
