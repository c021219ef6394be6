"""A tensor as the bytes of one message: its content, and before it how that lies in memory.

Kernels add up in an order that may depend on strides, so what has crossed must have the strides that it had, or the
gradients of a cut model would not be those of the whole one to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_ALIGNMENT = 64  # of what torch allocates; kernels may go other ways where it is less
_WORD = 8


def message_nbytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return the bytes of the message of a tensor, whatever its strides are."""
    return _header_nbytes(len(shape)) + torch.Size(shape).numel() * dtype.itemsize


def pack(tensor: torch.Tensor | None, buffer: torch.Tensor) -> None:
    """Write a tensor, or that there is none, into a message.

    Items that lie in memory once are sent once. Where they lie over one another in another way than by strides of 0,
    the tensor arrives contiguous.

    Args:
        tensor: to write.
        buffer: bytes, as many as `message_nbytes` says.
    """
    if tensor is None:
        buffer[:_WORD].zero_()
        return
    strides = tensor.stride()
    if not _is_without_overlap(tensor.shape, strides):
        tensor = tensor.contiguous()
        strides = tensor.stride()
    header = _header_nbytes(tensor.dim())
    buffer[: _WORD * (1 + len(strides))].view(torch.int64).copy_(torch.tensor([1, *strides]))
    sizes, dense = _dense(tensor.shape, strides)
    own = tensor.detach().as_strided(sizes, strides)
    buffer[header:].view(tensor.dtype).as_strided(sizes, dense).copy_(own)


def unpack(buffer: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
    """Return the tensor of a message, with its strides; it lies in the buffer where it can. None: there is none."""
    rank = len(shape)
    is_there, *strides = buffer[: _WORD * (1 + rank)].view(torch.int64).tolist()
    if not is_there:
        return None
    content = buffer[_header_nbytes(rank) :].view(dtype)
    sizes, dense = _dense(shape, strides)
    if all(size == 1 or own == wanted for size, own, wanted in zip(sizes, dense, strides, strict=True)):
        return content.as_strided(shape, strides)
    return with_strides(content.as_strided(sizes, dense).expand(shape), strides)


def with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return a tensor of the same content with other strides; it itself, where it has them."""
    if tensor.stride() == tuple(strides) or not _is_without_overlap(tensor.shape, strides):
        return tensor
    found = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    sizes, _ = _dense(tensor.shape, strides)
    found.as_strided(sizes, strides).copy_(tensor.as_strided(sizes, tensor.stride()))
    return found


def _header_nbytes(rank: int) -> int:
    return -(-_WORD * (1 + rank) // _ALIGNMENT) * _ALIGNMENT


def _dense(shape: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """Sizes of the items that lie in memory, and strides with which they lie in the same order without gaps."""
    sizes = [size if stride else min(size, 1) for size, stride in zip(shape, strides, strict=True)]
    dense, step = [0] * len(sizes), 1
    for axis in _from_inside(sizes, strides):
        dense[axis] = step
        step *= sizes[axis]
    return sizes, dense


def _is_without_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    reach = 0  # of the axes within
    for axis in _from_inside(shape, strides):
        if shape[axis] > 1 and strides[axis]:
            if strides[axis] <= reach:
                return False
            reach += (shape[axis] - 1) * strides[axis]
    return True


def _from_inside(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    return sorted(range(len(shape)), key=lambda axis: (strides[axis], -axis))
