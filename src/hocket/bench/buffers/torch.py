"""PyTorch tensors in the memory of the CPU."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from hocket.bench.buffers.base import BufferKind, page_aligned


class TorchBuffers(BufferKind):
    name = "torch"
    needs = "torch", "hocket[torch]"

    def make(self, count: int, dtype: str) -> Any:
        import torch

        kind = getattr(torch, dtype)
        return torch.from_numpy(page_aligned(count * kind.itemsize)).view(kind)

    def write(self, array: Any, content: NDArray[Any]) -> None:
        import torch

        array.copy_(torch.from_numpy(content))

    def read(self, array: Any) -> NDArray[Any]:
        import torch

        values = array.detach().cpu()
        found: NDArray[Any] = (values.float() if values.dtype == torch.bfloat16 else values).numpy().copy()
        return found

    def check_dtype(self, dtype: str) -> None:
        if dtype != "bfloat16":
            super().check_dtype(dtype)


KIND = TorchBuffers()
