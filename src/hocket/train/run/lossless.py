"""Messages between stages of different hosts in fewer bytes, from which every bit comes back.

Both ends must know the length of a message before it is sent, and what a tensor is packed into has a length of its own.
So a message has room for as much as the largest one of the step before it, and a little more; what does not fit follows
in a second message, whose length the first one tells. Both ends know the lengths of all messages between them, so they
find the same room without asking.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from hocket import _native
from hocket.errors import InvalidArgument, WrongResult
from hocket.train.run.messages import ALIGNMENT, WORD, as_tensor, content_of, header_nbytes

LOSSLESS = "lossless"
_LEAST_NBYTES = 1 << 12  # of a tensor; packing fewer is not worth its calls
_WHOLE = 1 << 16  # parts of a size
_MOST_PARTS = _WHOLE * 97 // 100  # more than these are not worth packing
_MARGIN = 64  # a 64th of room is left free
_STEPS_AS_THEY_ARE = 64  # after so many steps, packing is tried again
_NAMES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
}


def check_messages(messages: object) -> None:
    """Check how messages between stages are sent.

    Raises:
        InvalidArgument: it is neither None nor "lossless".
    """
    if messages is not None and messages != LOSSLESS:
        raise InvalidArgument(
            f'messages must be None or "{LOSSLESS}", not {messages!r}: an error in an activation is an error of the '
            "result, so compressors that lose something are for gradients=... only"
        )


def packed_text(raw_nbytes: int, sent_nbytes: int) -> str:
    """Return how many bytes packed messages have taken, in words."""
    if raw_nbytes == 0:
        return "no message between stages was packed: only those of 4 KiB and more between hosts are"
    return (
        f"messages between stages: {sent_nbytes / 1e6:.1f} MB for {raw_nbytes / 1e6:.1f} MB "
        f"({sent_nbytes / raw_nbytes:.0%}), without loss"
    )


def pack(tensor: torch.Tensor | None, shape: Sequence[int], buffer: torch.Tensor) -> int:
    """Write a tensor, or the fact that it is missing, into a message.

    Args:
        tensor: the tensor, or None.
        shape: its shape.
        buffer: uint8 tensor of `message_nbytes` items.

    Returns:
        The number of bytes that the content is packed into.
    """
    head = buffer[: WORD * (2 + len(shape))].view(torch.int64)
    if tensor is None:
        head.zero_()
        return 0
    strides, content = content_of(tensor)
    nbytes = _native.pack_lossless(
        content.view(torch.uint8).numpy(), _name_of(tensor.dtype), buffer[header_nbytes(len(shape) + 1) :].numpy()
    )
    head.copy_(torch.tensor([1, nbytes, *strides]))
    return nbytes


def parts_of(buffer: torch.Tensor, num_axes: int, room: int, nbytes: int) -> list[torch.Tensor]:
    """Return the messages of a packed tensor: one with room for so many bytes of content, and if need be the rest.

    Args:
        buffer: uint8 tensor of `message_nbytes` items.
        num_axes: number of axes of the tensor.
        room: bytes of content of the first message.
        nbytes: bytes of the content.
    """
    end = header_nbytes(num_axes + 1) + room
    return [buffer[:end], buffer[end : end + nbytes - room]] if nbytes > room else [buffer[:end]]


def packed_nbytes(buffer: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return the number of bytes of the content of a received message, as its head tells.

    Raises:
        WrongResult: no tensor of that shape is packed into so many.
    """
    is_present, nbytes = buffer[: 2 * WORD].view(torch.int64).tolist()
    if not 0 <= nbytes <= _most_nbytes(shape, dtype) or is_present not in (0, 1):
        raise WrongResult(f"the head of a packed message of {dtype} {list(shape)} says {nbytes} bytes")
    return int(nbytes)


def unpack(buffer: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
    """Return the tensor of a message, with the rest behind it, with its strides; None if it is missing.

    Raises:
        WrongResult: the bytes are not those of such a tensor.
    """
    is_present, nbytes, *strides = buffer[: WORD * (2 + len(shape))].view(torch.int64).tolist()
    if not is_present:
        return None
    begin = header_nbytes(len(shape) + 1)

    def read(num_elements: int) -> torch.Tensor:
        content = torch.empty(num_elements, dtype=dtype)
        packed = buffer[begin : begin + nbytes].numpy()
        if not _native.unpack_lossless(packed, _name_of(dtype), content.view(torch.uint8).numpy()):
            raise WrongResult(f"{nbytes} bytes of a packed message are not those of {dtype} {list(shape)}")
        return content

    return as_tensor(read, shape, strides)


def message_nbytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return the most bytes of a tensor's message."""
    return header_nbytes(len(shape) + 1) + _most_nbytes(shape, dtype)


@dataclass
class _Seen:
    most_parts: int = 0  # of the raw size, in this step
    parts: int = 0  # of the step before; 0: nothing is known
    as_it_is_until: int = 0


class Rooms:
    """How many bytes messages have room for; both ends call the methods with the same arguments in every step.

    Attributes:
        raw_nbytes, sent_nbytes: bytes of all tensors that were sent packed, and of what was sent for them.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, _Seen] = {}
        self._step = 0
        self.raw_nbytes = 0
        self.sent_nbytes = 0

    def begin_step(self) -> None:
        """Begin a step: what is known from now on is what the messages of the last one have shown."""
        self._step += 1
        for each in self._seen.values():
            if each.most_parts == 0:
                continue
            each.parts, each.most_parts = each.most_parts, 0
            if each.parts > _MOST_PARTS:
                each.as_it_is_until, each.parts = self._step + _STEPS_AS_THEY_ARE, 0

    def room(self, key: Hashable, shape: Sequence[int], dtype: torch.dtype) -> int | None:
        """Return the bytes of content that the first message of a tensor has; None: it is sent as it is.

        Args:
            key: what the tensor is, the same in every step.
            shape, dtype: those of the tensor.
        """
        seen = self._seen.setdefault(key, _Seen())
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        if nbytes < _LEAST_NBYTES or self._step < seen.as_it_is_until:
            return None
        most = _most_nbytes(shape, dtype)
        if seen.parts == 0:
            return most
        expected = nbytes * seen.parts // _WHOLE
        return min(most, -(-(expected + expected // _MARGIN) // ALIGNMENT) * ALIGNMENT)

    def note(self, key: Hashable, shape: Sequence[int], dtype: torch.dtype, nbytes: int) -> None:
        """Note how many bytes a tensor has been packed into; 0: it is missing."""
        seen = self._seen[key]
        raw = torch.Size(shape).numel() * dtype.itemsize
        seen.most_parts = max(seen.most_parts, -(-nbytes * _WHOLE // raw))

    def count(self, shape: Sequence[int], dtype: torch.dtype, parts: Sequence[torch.Tensor]) -> None:
        """Count a sent tensor and its messages."""
        self.raw_nbytes += torch.Size(shape).numel() * dtype.itemsize
        self.sent_nbytes += sum(map(len, parts))


def _most_nbytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    return int(_native.most_packed_nbytes(_name_of(dtype), torch.Size(shape).numel() * dtype.itemsize))


def _name_of(dtype: torch.dtype) -> str:
    return _NAMES.get(dtype, "uint8")
