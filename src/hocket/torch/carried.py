"""Types of torch that hocket does not compute with (float8 and complex32), as types that it supports.

They are sent as integers of the same size. Reductions use a wider type, and the result is rounded once at the end,
where it arrives: in a type of two digits every addition would lose precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_FLOAT8 = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)
_SAME_SIZE = {**dict.fromkeys(_FLOAT8, torch.uint8), torch.complex32: torch.int32}
_WIDER = {**dict.fromkeys(_FLOAT8, torch.float32), torch.complex32: torch.complex64}


def movable(x: torch.Tensor) -> torch.Tensor:
    """Return the same memory as a type that can be sent, with equally many items."""
    return x.detach().view(_SAME_SIZE[x.dtype]) if x.dtype in _SAME_SIZE else x


def reducible(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors of types that can be reduced: copies in a wider type, or the tensors themselves."""
    return [x.detach().to(_WIDER[x.dtype]) if x.dtype in _WIDER else x for x in tensors]


def copier_back(tensors: Sequence[torch.Tensor], reduced: Sequence[torch.Tensor]) -> Callable[[], None] | None:
    """Return a function that copies results of `reducible` into the original tensors; None if no copy is needed."""
    pairs = [(x, copy) for x, copy in zip(tensors, reduced, strict=True) if copy is not x]
    if not pairs:
        return None

    def copy_back() -> None:
        for x, copy in pairs:
            x.copy_(copy)

    return copy_back
