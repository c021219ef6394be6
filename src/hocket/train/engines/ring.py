"""A ring all-reduce of every tensor, as in Baidu's `baidu-allreduce` for TensorFlow (2017).

Each rank sends 2 (P - 1) / P of a tensor, in 2 (P - 1) messages: bandwidth is used well, but a model of many small
tensors pays the fixed cost of a message many times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hocket.comm import Communicator
from hocket.train.engines.engine import SummingEngine, TensorSpec
from hocket.train.engines.in_order import InOrder
from hocket.train.engines.ordered_sums import check_backend, start_sum


class RingAllReduce(SummingEngine):
    """A ring all-reduce of every tensor.

    Args:
        comm, tensors, exact, timeout_s: see `GradientEngine`.
        backend: the library that carries the parts; None: the one that the communicator's policy chooses.
    """

    has_order = False

    def __init__(
        self,
        comm: Communicator,
        tensors: Sequence[TensorSpec],
        *,
        exact: bool,
        timeout_s: float,
        backend: str | None = None,
    ) -> None:
        super().__init__(comm, tensors, exact=exact, timeout_s=timeout_s)
        check_backend(comm, backend)
        self._backend = backend
        self._comm = comm.dup()
        self._given: dict[int, torch.Tensor] = {}
        self._works: list[Any] = []
        self._in_order = InOrder(list(reversed(range(len(self.tensors)))), self._issue)

    def start(self, number: int, tensor: torch.Tensor) -> None:
        """See `SummingEngine.start`."""
        self._given[number] = tensor
        self._in_order.ready(number)

    def finish(self) -> None:
        """See `SummingEngine.finish`."""
        for work in self._works:
            work.wait(timeout=self.timeout_s)
        self._works.clear()
        self._given.clear()
        self._in_order.reset()

    def close(self) -> None:
        """Leave the engine's communicator. Idempotent."""
        self._comm._leave(0.0)

    def _issue(self, number: int) -> None:
        work = start_sum(
            self._comm, self._given[number], self.timeout_s, exact=False, backend=self._backend, algorithm="ring"
        )
        self._works.append(work)


ENGINE = RingAllReduce
