"""Sums over ranks by a communicator, in the order of ranks where that is asked for."""

from __future__ import annotations

from typing import Any

import torch

from hocket.comm import Communicator
from hocket.comm.steps import Pending
from hocket.errors import BackendUnavailable
from hocket.suggestions import unknown


def start_sum(
    comm: Communicator,
    tensor: torch.Tensor,
    timeout_s: float,
    *,
    exact: bool,
    backend: str | None = None,
    algorithm: str | None = None,
) -> Pending:
    """Start to sum a tensor over all ranks, in place.

    Args:
        comm: a communicator of all ranks.
        tensor: contiguous.
        timeout_s: timeout of the operation, in seconds.
        exact: whether to add the ranks' tensors one after the other, in the order of ranks, each time rounded to the
            tensor's type.
        backend: as for `Communicator.all_reduce`.
        algorithm: as for `Communicator.all_reduce`, unless `exact` is set.
    """
    chosen: dict[str, Any] = {"backend": backend, "algorithm": algorithm}
    if exact:
        # Shared memory's own algorithm adds in the order of ranks; it rounds half precision once, at the end.
        is_shm = "shm" in comm.backends if backend is None else backend == "shm"
        if not is_shm or tensor.dtype in (torch.float16, torch.bfloat16):
            return _GatheredSum(comm, tensor, timeout_s, backend)
        chosen = {"backend": "shm", "algorithm": "native"}
    given = {name: value for name, value in chosen.items() if value is not None}
    work: Pending = comm.all_reduce(tensor, async_op=True, timeout=timeout_s, **given)
    return work


def check_backend(comm: Communicator, backend: str | None) -> None:
    """Check that a communicator has a backend.

    Raises:
        BackendUnavailable: it does not.
    """
    if backend is not None and backend not in comm.backends:
        known = list(comm.backends)
        raise BackendUnavailable(unknown("backend", backend, known) + ": name it in hocket.init(backends=[...])")


class _GatheredSum:
    def __init__(self, comm: Communicator, tensor: torch.Tensor, timeout_s: float, backend: str | None) -> None:
        self._tensor = tensor
        self._rows = tensor.new_empty((comm.size, *tensor.shape))
        chosen: dict[str, Any] = {} if backend is None else {"backend": backend}
        self._work: Pending = comm.all_gather(self._rows, tensor, async_op=True, timeout=timeout_s, **chosen)

    def wait(self, timeout: float | None = None) -> None:
        self._work.wait(timeout=timeout)
        self._tensor.copy_(self._rows[0])
        for row in self._rows[1:]:
            self._tensor.add_(row)
