"""Tensors as messages arrive with their content and strides."""

from __future__ import annotations

import pytest
import torch

from hocket.train.run.messages import message_nbytes, pack, unpack, with_strides

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
    "bool": (BASE > 50).transpose(0, 1),
    "many axes": torch.arange(256.0).reshape([2] * 8).permute(*reversed(range(8))),
}


def _sent(tensor: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    buffer = torch.full((message_nbytes(like.shape, like.dtype),), 255, dtype=torch.uint8)
    pack(tensor, buffer)
    return unpack(buffer, like.shape, like.dtype)


@pytest.mark.parametrize("name", LAYOUTS)
def test_content_and_strides_arrive(name: str) -> None:
    tensor = LAYOUTS[name]
    found = _sent(tensor, tensor)
    assert found is not None
    assert torch.equal(found, tensor)
    assert found.dtype == tensor.dtype
    assert found.stride() == tensor.stride()
    assert found.data_ptr() % 64 == 0


def test_nothing_arrives_as_nothing() -> None:
    assert _sent(None, BASE) is None


def test_items_over_one_another_arrive_contiguous() -> None:
    windows = torch.arange(10.0).unfold(0, 4, 1)
    found = _sent(windows, windows)
    assert found is not None
    assert torch.equal(found, windows)
    assert found.is_contiguous()


@pytest.mark.parametrize("name", LAYOUTS)
def test_other_strides_same_content(name: str) -> None:
    tensor = LAYOUTS[name]
    found = with_strides(tensor.contiguous(), tensor.stride())
    assert torch.equal(found, tensor)
    assert found.stride() == tensor.stride()
