"""Arrays of callers as vectors of single precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.errors import InvalidArgument, InvalidType, UnsupportedDtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_HALVES = ("float16", "bfloat16")


def is_finite(x: NDArray[np.float32]) -> bool:
    """Whether all elements are finite."""
    if not len(x) or np.isfinite(np.dot(x, x)):  # fast; it overflows for large elements
        return True
    return bool(np.isfinite(x).all())


def clear_nonfinite(x: NDArray[np.float32]) -> None:
    """Set elements that are not finite to zero: residuals of sums that have overflowed."""
    if not is_finite(x):
        x[~np.isfinite(x)] = 0


def vector_of(x: Any, *, is_written: bool = True) -> tuple[NDArray[np.float32], Callable[[], object]]:
    """Return the elements of an array as a vector, and what writes a changed vector back to the array.

    The vector is the array itself where it is contiguous and of single precision, otherwise a copy.

    Args:
        x: a NumPy array or a torch tensor, of float32, float16 or bfloat16, in the memory of the host.
        is_written: whether the array is to be changed.

    Raises:
        InvalidType: it is another object.
        UnsupportedDtype: its elements have another type.
        InvalidArgument: it is on a device, is sparse, or cannot be written.
    """
    if isinstance(x, np.ndarray):
        return _of_numpy(x, is_written)
    if type(x).__module__.partition(".")[0] == "torch" and hasattr(x, "layout"):
        return _of_torch(x, is_written)
    raise InvalidType(f"x must be a NumPy array or a torch tensor, not {type(x).__name__}")


def _of_numpy(x: NDArray[Any], is_written: bool) -> tuple[NDArray[np.float32], Callable[[], object]]:
    if is_written and not x.flags.writeable:
        raise InvalidArgument("x is read-only, but the sum is written to it: pass a copy")
    if x.dtype == np.float32 and x.flags.c_contiguous:
        return x.reshape(-1), lambda: None
    if x.dtype.name not in ("float32", *_HALVES):
        raise UnsupportedDtype(f"x must have elements of float32, float16 or bfloat16, not {x.dtype}")
    vector = x.astype(np.float32).reshape(-1)
    return vector, lambda: np.copyto(x, vector.reshape(x.shape), casting="unsafe")


def _of_torch(x: Any, is_written: bool) -> tuple[NDArray[np.float32], Callable[[], object]]:
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
    if is_written and any(stride == 0 and length > 1 for stride, length in zip(x.stride(), x.shape, strict=True)):
        raise InvalidArgument("several elements of x share memory, but the sum is written to it: pass x.clone()")
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise UnsupportedDtype(f"x must have elements of float32, float16 or bfloat16, not {x.dtype}")
    copy = flat.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    return copy.view(-1).numpy(), lambda: flat.copy_(copy)
