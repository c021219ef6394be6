"""Which parameter server has which tensors, and in which messages they travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hocket.errors import InvalidArgument
from hocket.train.engines.engine import TensorSpec

MOST_NBYTES = 1 << 30
"""Most bytes of one message; gRPC's own limit is 2 GiB."""


@dataclass(frozen=True)
class Piece:
    """Consecutive elements of a tensor.

    Args:
        tensor: number of the tensor.
        begin, end: its elements, in memory order.
    """

    tensor: int
    begin: int
    end: int


@dataclass(frozen=True)
class Parcel:
    """What travels in one message: pieces of tensors of one data type that one server has.

    Args:
        server: number of the server.
        pieces: in the order in which they are in the message.
    """

    server: int
    pieces: tuple[Piece, ...]


def assign(tensors: Sequence[TensorSpec], num_servers: int) -> list[int]:
    """Return the server of each tensor: the largest tensors first, each to the server with the fewest bytes.

    Raises:
        InvalidArgument: there are more servers than tensors.

    Examples:
        >>> import torch
        >>> from hocket.train.engines.engine import TensorSpec
        >>> sizes = [100, 60, 50]
        >>> assign([TensorSpec(str(size), (size,), torch.float32) for size in sizes], 2)
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


def parcels_of(tensors: Sequence[TensorSpec], servers: Sequence[int], nbytes: int) -> list[Parcel]:
    """Return the messages of a step; the last tensors come first, since the backward pass computes them first.

    Args:
        tensors: all tensors.
        servers: the server of each.
        nbytes: most bytes of a message; a larger tensor is cut.
    """
    parcels: list[Parcel] = []
    filling: dict[tuple[int, str], list[Piece]] = {}
    room: dict[tuple[int, str], int] = {}
    for number in reversed(range(len(tensors))):
        tensor = tensors[number]
        key = servers[number], str(tensor.dtype)
        most = max(nbytes // tensor.dtype.itemsize, 1)
        begin = 0
        while begin < tensor.numel:
            free = room.setdefault(key, most)
            end = min(begin + free, tensor.numel)
            filling.setdefault(key, []).append(Piece(number, begin, end))
            room[key] -= end - begin
            begin = end
            if not room[key]:
                parcels.append(Parcel(key[0], tuple(filling.pop(key))))
                del room[key]
    parcels.extend(Parcel(key[0], tuple(pieces)) for key, pieces in filling.items())
    return parcels
