"""Which parameter server has which tensors, and in which messages they travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hocket.errors import InvalidArgument
from hocket.train.checks import check_count
from hocket.train.engines.engine import EXIST, TensorSpec

MOST_NBYTES = 1 << 30
"""Most bytes of one message; gRPC's own limit is 2 GiB."""


@dataclass(frozen=True)
class TensorPiece:
    """Consecutive elements of a tensor.

    Args:
        tensor: number of the tensor.
        begin, end: its elements, in memory order.
    """

    tensor: int
    begin: int
    end: int


@dataclass(frozen=True)
class ServerParcel:
    """What travels in one message: pieces of tensors of one data type that one server has.

    Args:
        server: number of the server.
        pieces: in the order in which they are in the message.
    """

    server: int
    pieces: tuple[TensorPiece, ...]


def check_server_options(num_servers: Any, message_nbytes: Any, ports: Any) -> None:
    """Check the options that all engines with parameter servers have.

    Raises:
        InvalidArgument: one is of another type, or out of range.
    """
    check_count("num_servers", num_servers)
    check_count("message_nbytes", message_nbytes)
    if message_nbytes > MOST_NBYTES:
        raise InvalidArgument(f"message_nbytes must be at most {MOST_NBYTES}, not {message_nbytes}")
    if not isinstance(ports, (list, tuple)) or not all(type(each) is int and 0 < each < 1 << 16 for each in ports):
        raise InvalidArgument(f"ports must be a sequence of port numbers, from 1 to 65535, not {ports!r}")
    if ports and len(ports) != num_servers:
        raise InvalidArgument(f"ports must have a port for each of {num_servers} servers, not {len(ports)}")


def assign(tensors: Sequence[TensorSpec], num_servers: int) -> list[int]:
    """Return the server of each tensor: the largest tensors first, each to the server with the fewest bytes.

    Raises:
        InvalidArgument: there are more servers than tensors.

    Examples:
        >>> import torch
        >>> from hocket.train.engines.engine import TensorSpec
        >>> assign([TensorSpec(str(size), (size,), torch.float32) for size in (100, 60, 50)], 2)
        [0, 1, 1]
    """
    if num_servers > len(tensors):
        raise InvalidArgument(
            f"num_servers is {num_servers}, but the model has {len(tensors)} tensors of gradients, and a server needs "
            f"at least one: use at most {len(tensors)}"
        )
    loads = [0] * num_servers
    servers = [0] * len(tensors)
    # A stable order: equal on all ranks.
    for number in sorted(range(len(tensors)), key=lambda each: -tensors[each].nbytes):
        # Each server gets a tensor before any gets a second one, also where tensors are empty.
        server = min(range(num_servers), key=lambda each: (loads[each], each))
        servers[number] = server
        loads[server] += max(tensors[number].nbytes, 1)
    return servers


class ParcelPlan:
    """The messages of a step.

    Those of the last tensors come first, since the backward pass computes these first.

    Args:
        tensors: all tensors.
        num_servers: number of servers.
        message_nbytes: most bytes of gradients in a message.
        cuts: whether a larger tensor is cut; if not, it is a message of its own.

    Attributes:
        parcels: all messages.
        of_tensor: for each tensor, the numbers of the messages that have pieces of it.

    Raises:
        InvalidArgument: see `assign`; or a tensor that is not cut has more bytes than a message may have.
    """

    def __init__(self, tensors: Sequence[TensorSpec], num_servers: int, message_nbytes: int, *, cuts: bool) -> None:
        self._tensors = tensors
        self._limit = message_nbytes
        self._cuts = cuts
        self.parcels: list[ServerParcel] = []
        self._filling: dict[tuple[int, torch.dtype], list[TensorPiece]] = {}
        for tensor in tensors:
            if not cuts and tensor.nbytes > MOST_NBYTES:
                raise InvalidArgument(
                    f"{tensor.name} has {tensor.nbytes} bytes, and parameter servers that update take at most "
                    f"{MOST_NBYTES} of a tensor: use an engine that sums, such as 'parameter-server'"
                )
        servers = assign(tensors, num_servers)
        for number in reversed(range(len(tensors))):
            self._place(number, servers[number])
        for (server, _), pieces in self._filling.items():
            self.parcels.append(ServerParcel(server, tuple(pieces)))
        self._filling.clear()
        self.of_tensor: list[list[int]] = [[] for _ in tensors]
        for place, parcel in enumerate(self.parcels):
            for piece in parcel.pieces:
                self.of_tensor[piece.tensor].append(place)

    @property
    def most_nbytes(self) -> int:
        """Number of bytes of the largest message."""
        return max((self.numel(each) * self.dtype(each).itemsize for each in range(len(self.parcels))), default=0)

    def dtype(self, number: int) -> torch.dtype:
        """Return the data type of a message."""
        return self._tensors[self.parcels[number].pieces[0].tensor].dtype

    def numel(self, number: int) -> int:
        """Return the number of elements of a message."""
        return sum(piece.end - piece.begin for piece in self.parcels[number].pieces)

    def split(self, flat: torch.Tensor, number: int) -> list[torch.Tensor]:
        """Return the parts of a message's elements that belong to its pieces."""
        return list(torch.split(flat, [piece.end - piece.begin for piece in self.parcels[number].pieces]))

    def names(self, number: int) -> str:
        """Return the names of the tensors in a message, for errors."""
        names = [self._tensors[piece.tensor].name for piece in self.parcels[number].pieces]
        names = [name for name in names if name != EXIST] or names
        return ", ".join(names[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")

    def of_server(self, server: int) -> list[tuple[int, int, str]]:
        """Return the number, number of elements and data type (such as "float32") of each message of a server."""
        return [
            (number, self.numel(number), str(self.dtype(number)).removeprefix("torch."))
            for number, parcel in enumerate(self.parcels)
            if parcel.server == server
        ]

    def _place(self, number: int, server: int) -> None:
        tensor = self._tensors[number]
        key = server, tensor.dtype
        begin = 0
        while begin < tensor.numel:
            pieces = self._filling.pop(key, [])
            left = tensor.numel - begin
            free = max(self._limit // tensor.dtype.itemsize, 1) - sum(each.end - each.begin for each in pieces)
            if not self._cuts and left > free and pieces:
                self.parcels.append(ServerParcel(server, tuple(pieces)))
                continue
            size = min(left, free) if self._cuts else left
            pieces.append(TensorPiece(number, begin, begin + size))
            begin += size
            if size >= free:
                self.parcels.append(ServerParcel(server, tuple(pieces)))
            else:
                self._filling[key] = pieces
