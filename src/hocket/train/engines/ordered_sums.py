"""Sums over ranks by a communicator, in the order of ranks where that is asked for."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from hocket.comm import Communicator


class Waitable(Protocol):
    """A sum in flight."""

    def wait(self, timeout: float | None = None) -> None:
        """Wait for it, at most so many seconds."""


def start_sum(
    comm: Communicator, tensor: torch.Tensor, timeout_s: float, *, exact: bool, algorithm: str | None = None
) -> Waitable:
    """Start to sum a tensor over all ranks, in place.

    Args:
        comm: a communicator of all ranks.
        tensor: contiguous.
        timeout_s: timeout of the operation, in seconds.
        exact: whether to add the ranks' tensors one after the other, in the order of ranks, each time rounded to the
            tensor's type.
        algorithm: as for `Communicator.all_reduce`, unless `exact` is set.
    """
    chosen: dict[str, Any] = {} if algorithm is None else {"algorithm": algorithm}
    if exact:
        # Shared memory's own algorithm adds in the order of ranks; it rounds half precision once, at the end.
        if "shm" not in comm.backends or tensor.dtype in (torch.float16, torch.bfloat16):
            return _GatheredSum(comm, tensor, timeout_s)
        chosen = {"backend": "shm", "algorithm": "native"}
    work: Waitable = comm.all_reduce(tensor, async_op=True, timeout=timeout_s, **chosen)
    return work


class _GatheredSum:
    def __init__(self, comm: Communicator, tensor: torch.Tensor, timeout_s: float) -> None:
        self._tensor = tensor
        self._rows = torch.empty((comm.size, *tensor.shape), dtype=tensor.dtype)
        self._work: Waitable = comm.all_gather(self._rows, tensor, async_op=True, timeout=timeout_s)

    def wait(self, timeout: float | None = None) -> None:
        self._work.wait(timeout=timeout)
        self._tensor.copy_(self._rows[0])
        for row in self._rows[1:]:
            self._tensor.add_(row)
