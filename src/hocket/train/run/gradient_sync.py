"""The sum of a stage's gradients over all of its copies: pipes of a schedule, and replicas of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from hocket.comm import Communicator
from hocket.errors import InvalidModel, ResourceExhausted
from hocket.train.run.backward import Gradients
from hocket.train.run.gradients import StageGradients, added


class GradientSync:
    """Sums the gradients of one stage, in one array for each type.

    Each array also has, for each parameter, the number of ranks with a gradient. So a parameter that the loss does not
    depend on has no gradient afterwards, as in one process.

    Args:
        comm: a communicator of the ranks that hold copies, in the order of their first copies.
        copies: number of copies on each of these ranks.
        here: gradients of this rank's copies, in order.
        numbers: indices of the parameters that are summed.
        exact: sum in the order of the copies, one after the other.
        timeout_s: timeout of every wait, in seconds.
    """

    def __init__(
        self,
        comm: Communicator,
        copies: Sequence[int],
        here: Sequence[StageGradients],
        numbers: Sequence[int],
        exact: bool,
        timeout_s: float,
    ) -> None:
        self._comm = comm
        self._copies = list(copies)
        self._here = list(here)
        self._exact = exact
        self._timeout_s = timeout_s
        self._num_begun = 0
        self._pending: list[_Flat] = []
        parameters = self._here[0].parameters
        by_type = sorted(numbers, key=lambda number: str(parameters[number].dtype))
        self._flats = [
            _Flat(comm, parameters, list(each))
            for _, each in groupby(by_type, key=lambda number: parameters[number].dtype)
        ]

    def start(self) -> None:
        """Count one of this rank's copies as ready; when all are ready, start the sum."""
        self._num_begun += 1
        if self._num_begun < len(self._here):
            return
        self._num_begun = 0
        for flat in self._flats:
            if self._exact and max(self._copies) > 1:
                flat.start_gather(self._here, self._copies, self._timeout_s)
            else:
                total = self._here[0].sums
                for copy in self._here[1:]:
                    total = added(total, copy.sums)
                flat.start_sum(total, self._exact, self._timeout_s)
            self._pending.append(flat)

    def wait(self) -> None:
        """Wait for the sum, and set it in every copy on this rank."""
        for flat in self._pending:
            flat.finish(self._here, self._timeout_s)
        self._pending.clear()


class _Flat:
    """The gradients of one type in one array: all values, then for each parameter 1 if it has a gradient, else 0."""

    def __init__(self, comm: Communicator, parameters: Sequence[torch.nn.Parameter], numbers: list[int]) -> None:
        self._comm = comm
        self._numbers = numbers
        self._shapes = [parameters[number].shape for number in numbers]
        self._lengths = [parameters[number].numel() for number in numbers]
        self._dtype = parameters[numbers[0]].dtype
        self._device = parameters[numbers[0]].device
        self._size = sum(self._lengths) + len(numbers)
        self._own = self._make(self._size)
        self._all: torch.Tensor | None = None
        self._work: Any = None

    def start_sum(self, gradients: Gradients, exact: bool, timeout_s: float) -> None:
        self._fill(self._own, gradients)
        if not exact:
            self._work = self._comm.all_reduce(self._own, async_op=True, timeout=timeout_s)
        elif "shm" in self._comm.backends:  # its native algorithm sums in the order of ranks
            self._work = self._comm.all_reduce(
                self._own, backend="shm", algorithm="native", async_op=True, timeout=timeout_s
            )
        else:
            self.start_gather_of([self._own], [1] * self._comm.size, timeout_s)

    def start_gather(self, here: Sequence[StageGradients], copies: list[int], timeout_s: float) -> None:
        rows = [self._make(self._size) for _ in here]
        for row, copy in zip(rows, here, strict=True):
            self._fill(row, copy.sums)
        self.start_gather_of(rows, copies, timeout_s)

    def start_gather_of(self, rows: list[torch.Tensor], copies: list[int], timeout_s: float) -> None:
        own = torch.cat(rows)
        self._all = torch.empty(sum(copies) * self._size, dtype=self._dtype, device=self._device)
        counts = [count * self._size for count in copies]
        self._work = self._comm.all_gatherv(self._all, own, counts, async_op=True, timeout=timeout_s)

    def finish(self, here: Sequence[StageGradients], timeout_s: float) -> None:
        self._work.wait(timeout=timeout_s)
        total = self._own
        if self._all is not None:
            rows = self._all.view(-1, self._size)
            total = rows[0].clone()
            for row in rows[1:]:
                total += row
            self._all = None
        values, counts = total[: -len(self._numbers)], total[-len(self._numbers) :]
        parts = torch.split(values, self._lengths)
        exist = (counts > 0).tolist()
        for copy in here:
            for number, part, shape, exists in zip(self._numbers, parts, self._shapes, exist, strict=True):
                copy.sums[number] = part.view(shape).clone() if exists else None

    def _make(self, size: int) -> torch.Tensor:
        if self._device.type == "cpu" and self._comm.num_hosts == 1:
            try:
                shared: torch.Tensor = self._comm.empty(size, self._dtype)
                return shared
            except ResourceExhausted:
                pass  # shared memory only makes it faster
        return torch.empty(size, dtype=self._dtype, device=self._device)

    def _fill(self, flat: torch.Tensor, gradients: Gradients) -> None:
        values, counts = flat[: -len(self._numbers)], flat[-len(self._numbers) :]
        exist = [gradients[number] is not None for number in self._numbers]
        parts = zip(torch.split(values, self._lengths), self._numbers, strict=True)
        for part, number in parts:
            gradient = gradients[number]
            if gradient is None:
                part.zero_()
            elif gradient.layout != torch.strided:
                raise InvalidModel(
                    "sparse gradients cannot be summed over copies of a stage: use sparse=False in the embedding"
                )
            else:
                part.copy_(gradient.reshape(-1))
        counts.copy_(torch.tensor(exist, dtype=self._dtype))
