"""How the elements of gradients travel between a rank and the parameter servers, beside or in the calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import torch

from hocket.comm import Communicator
from hocket.errors import InvalidArgument, ResourceExhausted
from hocket.train.engines.ordered_sums import check_backend
from hocket.train.engines.servers.client import ServerClient
from hocket.train.engines.servers.launching import rank_of_server
from hocket.train.engines.servers.messages import HEAD_NBYTES
from hocket.train.engines.servers.relay import Relay
from hocket.train.engines.servers.shards import ParcelPlan
from hocket.train.engines.servers.shared_memory import BlockAddress, MemoryBlock, places_of

Block = tuple[int, int, int]
"""A `BlockAddress` as JSON has it."""


class Payload(ABC):
    """A rank's end."""

    is_in_memory = True
    """Whether messages have only their heads."""
    relayed: Sequence[int] = ()
    """Ranks whose elements another rank puts into the memory that a server reads."""

    def blocks(self, server: int) -> list[Block]:
        """Return the block of memory of each rank that a server reads; none: elements are in the messages."""
        return []

    @property
    def places(self) -> list[int]:
        """The first byte of each parcel in every block, and the end of the last one."""
        return []

    @abstractmethod
    def open(self, client: ServerClient) -> None:
        """Begin, as soon as there are servers."""

    @abstractmethod
    def put(self, place: int, step: int, pieces: Sequence[torch.Tensor]) -> list[Any]:
        """Give the elements of a parcel away; return what the call has behind its head."""

    @abstractmethod
    def take(self, place: int, answer: bytes) -> torch.Tensor:
        """Return the sums of a parcel, when its call was answered."""

    def finish(self) -> None:  # noqa: B027
        """Prepare the next step."""

    def close(self) -> None:  # noqa: B027
        """Give back what it holds. Idempotent."""


class InMessages(Payload):
    """Elements are in the calls.

    Args:
        plan: the parcels.
    """

    is_in_memory = False

    def __init__(self, plan: ParcelPlan) -> None:
        self._plan = plan

    def open(self, client: ServerClient) -> None:
        """Do nothing."""

    def put(self, place: int, step: int, pieces: Sequence[torch.Tensor]) -> list[Any]:
        """See `Payload`."""
        return [piece.cpu().view(torch.uint8).numpy() for piece in pieces]

    def take(self, place: int, answer: bytes) -> torch.Tensor:
        """See `Payload`."""
        return torch.frombuffer(bytearray(answer), dtype=self._plan.dtype(place), offset=HEAD_NBYTES)


class InSharedMemory(Payload):
    """Elements are in memory that the ranks and servers of a host share.

    Args:
        comm: a communicator of all ranks.
        plan: the parcels.

    Raises:
        InvalidArgument: the ranks are on several hosts.
    """

    def __init__(self, comm: Communicator, plan: ParcelPlan) -> None:
        if comm.num_hosts > 1:
            raise InvalidArgument(f"payload='shm' needs all ranks on one host; they are on {comm.num_hosts}")
        self._plan = plan
        self._places = _places(plan)
        (self._own,) = _new_blocks(comm, 1, self._places[-1])
        self._of_ranks: list[Block] = [astuple(each) for each in comm.all_gather_object(self._own.address)]
        self._mine = _parts(self._own, plan, self._places)
        self._sums: list[torch.Tensor] = []

    def blocks(self, server: int) -> list[Block]:
        """See `Payload`."""
        return self._of_ranks

    @property
    def places(self) -> list[int]:
        """See `Payload`."""
        return self._places

    def open(self, client: ServerClient) -> None:
        """Open the servers' blocks."""
        of_servers = [_opened(each.block, self._plan, self._places) for each in client.addresses]
        self._sums = [of_servers[parcel.server][place] for place, parcel in enumerate(self._plan.parcels)]

    def put(self, place: int, step: int, pieces: Sequence[torch.Tensor]) -> list[Any]:
        """See `Payload`."""
        torch._foreach_copy_(self._plan.split(self._mine[place], place), list(pieces))
        return []

    def take(self, place: int, answer: bytes) -> torch.Tensor:
        """See `Payload`."""
        return self._sums[place]

    def close(self) -> None:
        """See `Payload`."""
        self._own.close()
        self._mine, self._sums = [], []


class ByLibrary(Payload):
    """Elements travel by a library of the communicator, between each rank and the rank that started the server.

    That rank has a block of memory for each other rank, which its server reads, and sends what the server has summed.

    Args:
        comm: a communicator of all ranks.
        plan: the parcels.
        num_servers: number of servers.
        backend: the library.
        timeout_s: timeout of every wait, in seconds.
    """

    def __init__(self, comm: Communicator, plan: ParcelPlan, num_servers: int, backend: str, timeout_s: float) -> None:
        check_backend(comm, backend)
        self._rank, self._plan, self._places = comm.rank, plan, _places(plan)
        self._how: dict[str, Any] = {"backend": backend, "timeout": timeout_s}
        self._carriers = [rank_of_server(server, num_servers, comm.size) for server in range(num_servers)]
        self.relayed = range(comm.size)
        mine = [server for server, carrier in enumerate(self._carriers) if carrier == comm.rank]
        self._own, *blocks = _new_blocks(comm, 1 + len(mine) * (comm.size - 1), self._places[-1])
        self._comms = [comm.dup() for _ in range(num_servers)]  # each is used by one thread of a rank
        self._mine = _parts(self._own, plan, self._places)
        self._sums = [torch.empty(plan.numel(place), dtype=plan.dtype(place)) for place in range(len(plan.parcels))]
        self._for_others: dict[int, list[MemoryBlock]] = {
            server: [self._own if rank == comm.rank else blocks.pop() for rank in range(comm.size)] for server in mine
        }
        self._relays: list[Relay] = []
        self._flying: dict[int, Any] = {}
        self._sent: list[Any] = []

    def blocks(self, server: int) -> list[Block]:
        """See `Payload`."""
        return [astuple(each.address) for each in self._for_others[server]]

    @property
    def places(self) -> list[int]:
        """See `Payload`."""
        return self._places

    def open(self, client: ServerClient) -> None:
        """Start a thread for each server of this rank."""
        for server, blocks in self._for_others.items():
            sums = _opened(client.addresses[server].block, self._plan, self._places)
            mine = [place for place, parcel in enumerate(self._plan.parcels) if parcel.server == server]
            for place in mine:
                self._sums[place] = sums[place]
            arrays = {
                rank: _parts(block, self._plan, self._places) for rank, block in enumerate(blocks) if rank != self._rank
            }
            self._relays.append(Relay(self._comms[server], client, mine, arrays, sums, self._how))

    def put(self, place: int, step: int, pieces: Sequence[torch.Tensor]) -> list[Any]:
        """See `Payload`."""
        torch._foreach_copy_(self._plan.split(self._mine[place], place), list(pieces))
        server = self._plan.parcels[place].server
        carrier = self._carriers[server]
        if carrier != self._rank:
            comm = self._comms[server]
            self._flying[place] = comm.irecv(self._sums[place], carrier, tag=2 * place + 1, **self._how)
            self._sent.append(comm.isend(self._mine[place], carrier, tag=2 * place, **self._how))
        return []

    def take(self, place: int, answer: bytes) -> torch.Tensor:
        """See `Payload`."""
        work = self._flying.pop(place, None)
        if work is not None:
            work.wait(timeout=self._how["timeout"])
        return self._sums[place]

    def finish(self) -> None:
        """See `Payload`."""
        for work in self._sent:
            work.wait(timeout=self._how["timeout"])
        self._sent.clear()

    def close(self) -> None:
        """See `Payload`."""
        for relay in self._relays:
            relay.stop()
        for comm in self._comms:
            comm._leave(0.0)
        for relay in self._relays:
            relay.join()
        for blocks in self._for_others.values():
            for block in blocks:
                block.close()
        self._own.close()
        self._mine, self._sums = [], []


def make_payload(name: str, comm: Communicator, plan: ParcelPlan, num_servers: int, timeout_s: float) -> Payload:
    """Return the payload of this name; called by all ranks.

    Args:
        name: "grpc", "shm", or a library of the communicator.
        comm, plan, num_servers, timeout_s: see `ByLibrary`.

    Raises:
        InvalidArgument: the name is no text, or the ranks are on several hosts, and share no memory.
        BackendUnavailable: the communicator has no such library.
    """
    if not isinstance(name, str):
        raise InvalidArgument(f"payload must be 'grpc', 'shm' or the name of a library, not {name!r}")
    if name == "grpc":
        return InMessages(plan)
    if name == "shm":
        return InSharedMemory(comm, plan)
    return ByLibrary(comm, plan, num_servers, name, timeout_s)


def _new_blocks(comm: Communicator, count: int, nbytes: int) -> list[MemoryBlock]:
    """Return new blocks of memory; called by all ranks.

    Raises:
        ResourceExhausted: a rank could not get them; raised on all ranks.
    """
    blocks: list[MemoryBlock] = []
    problem = None
    try:
        for _ in range(count):
            blocks.append(MemoryBlock(nbytes))
    except ResourceExhausted as error:
        problem = f"rank {comm.rank}: {error}"
    try:
        for each in comm.all_gather_object(problem):
            if each is not None:
                raise ResourceExhausted(each)
    except BaseException:
        for block in blocks:
            block.close()
        raise
    return blocks


def _places(plan: ParcelPlan) -> list[int]:
    return places_of([plan.numel(place) * plan.dtype(place).itemsize for place in range(len(plan.parcels))])


def _opened(address: BlockAddress | None, plan: ParcelPlan, places: Sequence[int]) -> list[torch.Tensor]:
    """Return the parts of a block of another process, which stay when the block is closed."""
    assert address is not None
    block = MemoryBlock(places[-1], address)
    try:
        return _parts(block, plan, places)
    finally:
        block.close()


def _parts(block: MemoryBlock, plan: ParcelPlan, places: Sequence[int]) -> list[torch.Tensor]:
    return [block.tensor(places[place], plan.numel(place), plan.dtype(place)) for place in range(len(plan.parcels))]
