"""Packing of lists of tensors into one array, and unpacking."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hocket.errors import InvalidArgument
from hocket.torch.carried import movable


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the items of all tensors in one array, tensor after tensor."""
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise InvalidArgument(f"all tensors must have the same type, not {[str(tensor.dtype) for tensor in tensors]}")
    return torch.cat([movable(tensor).detach().reshape(-1) for tensor in tensors])


def unpack(tensors: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    """Copy the array that `pack` made into tensors of the same sizes."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        movable(tensor).copy_(part.view(tensor.shape))


def items_of_splits(tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Return the number of items of each rank's part of a tensor.

    Args:
        tensor: the tensor.
        splits: number of rows of each part; empty: equal parts.
        size: number of ranks.

    Raises:
        InvalidArgument: the splits do not sum to the rows of the tensor.
    """
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise InvalidArgument(f"{rows} rows cannot be split into {size} equal parts: pass split sizes")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise InvalidArgument(f"split sizes must be {size} numbers that sum to {rows} rows, not {list(splits)}")
    items = tensor.numel() // rows if rows else 0
    return [each * items for each in splits]
