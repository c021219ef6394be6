"""Tensors as messages arrive with their content and strides, packed ones too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hocket.errors import WrongResult
from hocket.train.run import lossless
from hocket.train.run.messages import message_nbytes, pack, unpack, with_strides

from ..naming import raises

BASE = torch.arange(120.0).reshape(4, 5, 6)
LAYOUTS = {
    "contiguous": BASE,
    "transposed": BASE.transpose(0, 2),
    "permuted": BASE.permute(1, 2, 0),
    "channels last": torch.arange(120.0).reshape(1, 5, 4, 6).contiguous(memory_format=torch.channels_last),
    "with gaps": BASE[:, 1:4, ::2],
    "expanded": BASE[:, :1].expand(4, 3, 6),
    "expanded number": torch.tensor(3.0).expand(2, 3),
    "a number": torch.tensor(7, dtype=torch.int64),
    "nothing in it": torch.empty(0, 3),
    "an axis of one": BASE[:, 2:3].transpose(1, 2),
    "bfloat16": BASE.to(torch.bfloat16).mT,
    "complex": torch.complex(BASE, -BASE)[::2],
    "conjugate": torch.complex(BASE, -BASE).conj(),
    "negative": torch.complex(BASE, -BASE).conj().imag,
    "bool": (BASE > 50).transpose(0, 1),
    "many axes": torch.arange(256.0).reshape([2] * 8).permute(*reversed(range(8))),
}


def _sent(tensor: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    buffer = torch.full((message_nbytes(like.shape, like.dtype),), 255, dtype=torch.uint8)
    pack(tensor, buffer)
    return unpack(buffer, like.shape, like.dtype)


def _sent_packed(tensor: torch.Tensor | None, like: torch.Tensor, room: int = 0) -> torch.Tensor | None:
    """Carry only what the messages have, with room for so many bytes in the first one."""
    sent, received = (
        torch.full((lossless.message_nbytes(like.shape, like.dtype),), fill, dtype=torch.uint8) for fill in (1, 2)
    )
    nbytes = lossless.pack(tensor, like.shape, sent)
    first, *rest = lossless.parts_of(sent, like.dim(), room, nbytes)
    received[: len(first)] = first
    assert lossless.packed_nbytes(received, like.shape, like.dtype) == nbytes
    for to, each in zip(lossless.parts_of(received, like.dim(), room, nbytes)[1:], rest, strict=True):
        to[:] = each
    return lossless.unpack(received, like.shape, like.dtype)


@pytest.mark.parametrize("send", [_sent, _sent_packed])
@pytest.mark.parametrize("name", LAYOUTS)
def test_content_and_strides_arrive(name: str, send: Callable[..., torch.Tensor | None]) -> None:
    tensor = LAYOUTS[name]
    found = send(tensor, tensor)
    assert found is not None
    assert torch.equal(found, tensor)
    assert found.dtype == tensor.dtype
    assert found.stride() == tensor.stride()
    assert found.data_ptr() % 64 == 0


@pytest.mark.parametrize("send", [_sent, _sent_packed])
def test_nothing_arrives_as_nothing(send: Callable[..., torch.Tensor | None]) -> None:
    assert send(None, BASE) is None


@pytest.mark.parametrize("send", [_sent, _sent_packed])
def test_items_over_one_another_arrive_contiguous(send: Callable[..., torch.Tensor | None]) -> None:
    windows = torch.arange(10.0).unfold(0, 4, 1)
    found = send(windows, windows)
    assert found is not None
    assert torch.equal(found, windows)
    assert found.is_contiguous()


@pytest.mark.parametrize("name", LAYOUTS)
def test_other_strides_same_content(name: str) -> None:
    tensor = LAYOUTS[name]
    found = with_strides(tensor.contiguous(), tensor.stride())
    assert torch.equal(found, tensor)
    assert found.stride() == tensor.stride()


DTYPES = sorted(lossless._NAMES, key=str) + [torch.uint8, torch.float8_e4m3fn, torch.uint16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("room", [0, 64, 1 << 20])
def test_every_bit_of_every_type_arrives(dtype: torch.dtype, room: int) -> None:
    generator = torch.Generator().manual_seed(1)
    nbytes = 9000 * dtype.itemsize
    noise = torch.randint(0, 2 if dtype == torch.bool else 256, (nbytes,), dtype=torch.uint8, generator=generator)
    noise[nbytes // 3 : nbytes // 2] = 0
    tensor = noise.view(dtype).reshape(90, 100)
    found = _sent_packed(tensor, tensor, room)
    assert found is not None and found.dtype == dtype and torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_damaged_packed_messages_are_refused() -> None:
    buffer = torch.zeros(lossless.message_nbytes(BASE.shape, BASE.dtype), dtype=torch.uint8)
    nbytes = lossless.pack(BASE, BASE.shape, buffer)
    head = buffer[:16].view(torch.int64)
    for wrong in ([2, nbytes], [-7, nbytes], [1, -1], [1, 1 << 40]):
        head.copy_(torch.tensor(wrong))
        with raises(WrongResult, names=(str(BASE.dtype), str(list(BASE.shape)), str(wrong[1]))):
            lossless.packed_nbytes(buffer, BASE.shape, BASE.dtype)
    head.copy_(torch.tensor([1, nbytes - 1]))
    with raises(WrongResult, names=(str(nbytes - 1), str(BASE.dtype))):
        lossless.unpack(buffer, BASE.shape, BASE.dtype)


def test_messages_have_room_for_what_came_before() -> None:
    rooms, what = lossless.Rooms(), ((1000, 100), torch.float32)
    assert rooms.room("a value", *what) > 400_000  # whatever comes
    rooms.note("a value", *what, 90_000)
    rooms.note("a value", *what, 100_000)
    assert rooms.room("a value", *what) > 400_000  # the other end may not have seen these
    rooms.begin_step()
    room = rooms.room("a value", *what)
    assert room is not None and 100_000 < room < 103_000
    rooms.begin_step()  # of an evaluation, without it
    assert rooms.room("a value", *what) == room
    rooms.note("a value", *what, 399_000)
    rooms.begin_step()
    for _ in range(64):  # it is not worth packing
        assert rooms.room("a value", *what) is None
        rooms.begin_step()
    assert rooms.room("a value", *what) > 400_000
    assert rooms.room("a small value", (10, 10), torch.float32) is None
