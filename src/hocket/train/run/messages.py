"""A tensor as the bytes of one message: its strides, then its content.

The order in which kernels sum may depend on strides. So a received tensor must have the strides of the sent one, or the
gradients of a split model would differ from those of the whole model in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

ALIGNMENT = 64  # as torch's allocator; kernels may take other paths with less
WORD = 8


def message_nbytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return the number of bytes of a tensor's message, which does not depend on its strides."""
    return header_nbytes(len(shape)) + torch.Size(shape).numel() * dtype.itemsize


def pack(tensor: torch.Tensor | None, buffer: torch.Tensor) -> None:
    """Write a tensor, or the fact that it is missing, into a message.

    An axis with stride 0 is sent as one item. A tensor whose items overlap in another way arrives contiguous.

    Args:
        tensor: the tensor to write, or None.
        buffer: uint8 tensor of `message_nbytes` items.
    """
    if tensor is None:
        buffer[:WORD].zero_()
        return
    tensor, strides = _without_overlap(tensor)
    header = header_nbytes(tensor.dim())
    buffer[: WORD * (1 + len(strides))].view(torch.int64).copy_(torch.tensor([1, *strides]))
    sizes, dense = _dense(tensor.shape, strides)
    own = tensor.detach().as_strided(sizes, strides)
    buffer[header:].view(tensor.dtype).as_strided(sizes, dense).copy_(own)


def content_of(tensor: torch.Tensor) -> tuple[Sequence[int], torch.Tensor]:
    """Return the strides that `pack` sends, and the items that it sends, as an axis; a view if they are dense."""
    tensor, strides = _without_overlap(tensor)
    sizes, dense = _dense(tensor.shape, strides)
    own = tensor.detach().as_strided(sizes, strides)
    num_items = own.numel()
    # A conjugate or negative view has the bytes of what it is a view of.
    if _are_dense(sizes, dense, strides) and not (own.is_conj() or own.is_neg()):
        return strides, own.as_strided([num_items], [1])
    items = torch.empty(num_items, dtype=tensor.dtype)
    items.as_strided(sizes, dense).copy_(own)
    return strides, items


def unpack(buffer: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
    """Return the tensor of a message with its strides, if possible as a view of the buffer; None if it is missing."""
    num_axes = len(shape)
    is_present, *strides = buffer[: WORD * (1 + num_axes)].view(torch.int64).tolist()
    if not is_present:
        return None
    return as_tensor(lambda _: buffer[header_nbytes(num_axes) :].view(dtype), shape, strides)


def as_tensor(items: Callable[[int], torch.Tensor], shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """Return a tensor of items that were sent, if possible as a view.

    Args:
        items: (their number) -> the items, as an axis.
        shape, strides: those of the tensor.
    """
    sizes, dense = _dense(shape, strides)
    content = items(torch.Size(sizes).numel())
    if _are_dense(sizes, dense, strides):
        return content.as_strided(shape, strides)
    return with_strides(content.as_strided(sizes, dense).expand(shape), strides)


def with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return a tensor of the same content with these strides; the tensor itself if it has them already."""
    if tensor.stride() == tuple(strides) or not _is_without_overlap(tensor.shape, strides):
        return tensor
    copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    sizes, _ = _dense(tensor.shape, strides)
    copy.as_strided(sizes, strides).copy_(tensor.as_strided(sizes, tensor.stride()))
    return copy


def header_nbytes(num_axes: int) -> int:
    """Return the bytes before the content: those of the strides of so many axes, and of a word more."""
    return -(-WORD * (1 + num_axes) // ALIGNMENT) * ALIGNMENT


def _dense(shape: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the shape without repeated items, and strides of the same order of axes without gaps."""
    sizes = [size if stride else min(size, 1) for size, stride in zip(shape, strides, strict=True)]
    dense, step = [0] * len(sizes), 1
    for axis in _by_stride(sizes, strides):
        dense[axis] = step
        step *= sizes[axis]
    return sizes, dense


def _are_dense(sizes: Sequence[int], dense: Sequence[int], strides: Sequence[int]) -> bool:
    return all(size == 1 or own == original for size, own, original in zip(sizes, dense, strides, strict=True))


def _without_overlap(tensor: torch.Tensor) -> tuple[torch.Tensor, Sequence[int]]:
    if not _is_without_overlap(tensor.shape, tensor.stride()):
        tensor = tensor.contiguous()
    return tensor, tensor.stride()


def _is_without_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    reach = 0  # offset of the last item over the axes with smaller strides
    for axis in _by_stride(shape, strides):
        if shape[axis] > 1 and strides[axis]:
            if strides[axis] <= reach:
                return False
            reach += (shape[axis] - 1) * strides[axis]
    return True


def _by_stride(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    return sorted(range(len(shape)), key=lambda axis: (strides[axis], -axis))
