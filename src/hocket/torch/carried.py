"""Types of torch's that hocket does not compute with, as those that it does: float8 and complex32.

They move as integers of their size. What is reduced is added up in a type with more digits and rounded once, at the
end, where the result is: in a type of two digits every addition would lose some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_FLOAT8 = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)
_OF_ONE_SIZE = {**dict.fromkeys(_FLOAT8, torch.uint8), torch.complex32: torch.int32}
_WIDER = {**dict.fromkeys(_FLOAT8, torch.float32), torch.complex32: torch.complex64}


def movable(x: torch.Tensor) -> torch.Tensor:
    """Return the same memory as a type that can be moved, with as many items."""
    return x.detach().view(_OF_ONE_SIZE[x.dtype]) if x.dtype in _OF_ONE_SIZE else x


def reducible(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors of a type that can be reduced: copies, or those that were given."""
    return [x.detach().to(_WIDER[x.dtype]) if x.dtype in _WIDER else x for x in tensors]


def bring_back(tensors: Sequence[torch.Tensor], reduced: Sequence[torch.Tensor]) -> Callable[[], None] | None:
    """Return what copies results of `reducible` to where they belong; None where they are there."""
    pairs = [(x, copy) for x, copy in zip(tensors, reduced, strict=True) if copy is not x]
    if not pairs:
        return None

    def bring() -> None:
        for x, copy in pairs:
            x.copy_(copy)

    return bring
