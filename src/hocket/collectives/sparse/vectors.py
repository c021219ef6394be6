"""Arrays of callers as vectors of single precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.errors import InvalidArgument, InvalidType, UnsupportedDtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_HALVES = ("float16", "bfloat16")


def vector_of(x: Any) -> tuple[NDArray[np.float32], Callable[[], object]]:
    """Return the elements of an array as a vector, and what writes a changed vector back to the array.

    The vector is the array itself where it is contiguous and of single precision, otherwise a copy.

    Args:
        x: a NumPy array or a torch tensor, of float32, float16 or bfloat16, in the memory of the host.

    Raises:
        InvalidType: it is another object.
        UnsupportedDtype: its elements have another type.
        InvalidArgument: it is on a device, is sparse, or cannot be written.
    """
    if isinstance(x, np.ndarray):
        return _of_numpy(x)
    if type(x).__module__.partition(".")[0] == "torch" and hasattr(x, "layout"):
        return _of_torch(x)
    raise InvalidType(f"x must be a NumPy array or a torch tensor, not {type(x).__name__}")


def _of_numpy(x: NDArray[Any]) -> tuple[NDArray[np.float32], Callable[[], object]]:
    if not x.flags.writeable:
        raise InvalidArgument("x is read-only, but the sum is written to it: pass a copy")
    if x.dtype == np.float32 and x.flags.c_contiguous:
        return x.reshape(-1), lambda: None
    if x.dtype.name not in ("float32", *_HALVES):
        raise UnsupportedDtype(f"x must have elements of float32, float16 or bfloat16, not {x.dtype}")
    vector = x.astype(np.float32).reshape(-1)
    return vector, lambda: np.copyto(x, vector.reshape(x.shape), casting="unsafe")


def _of_torch(x: Any) -> tuple[NDArray[np.float32], Callable[[], object]]:
    import torch

    if x.layout != torch.strided:
        raise InvalidArgument(
            f"x is a sparse tensor ({x.layout}), but must be a dense one, of which the largest elements are sent: "
            "comm.all_reduce adds sparse tensors"
        )
    if x.device.type != "cpu":
        raise InvalidArgument(f"x is on {x.device}, but must be in the memory of the host: pass x.cpu()")
    flat = x.detach()
    if x.dtype == torch.float32 and flat.is_contiguous():
        return flat.view(-1).numpy(), lambda: None
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise UnsupportedDtype(f"x must have elements of float32, float16 or bfloat16, not {x.dtype}")
    copy = flat.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    return copy.view(-1).numpy(), lambda: flat.copy_(copy)
