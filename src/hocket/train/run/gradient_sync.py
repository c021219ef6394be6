"""The sum of a stage's gradients over all of its copies: pipes of a schedule, and replicas of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from hocket.comm import Communicator
from hocket.errors import InvalidModel
from hocket.train.engines.engine import COUNTS, SummingEngine, TensorSpec
from hocket.train.engines.registry import EngineChoice
from hocket.train.run.backward import Gradients
from hocket.train.run.gradients import StageGradients, added


class GradientSync:
    """Sums the gradients of one stage over all of its copies, by a gradient engine.

    The ranks also count, for each parameter, those with a gradient. So a parameter that the loss does not depend on has
    no gradient afterwards, as in one process.

    Args:
        comm: a communicator of the ranks that hold copies, in the order of their first copies.
        copies: number of copies on each of these ranks.
        here: gradients of this rank's copies, in order.
        numbers: indices of the parameters that are summed.
        names: their names.
        exact: sum in the order of the copies, one after the other.
        timeout_s: timeout of every wait, in seconds.
        choice: the engine.

    Raises:
        InvalidArgument: the engine cannot sum in this order.
    """

    def __init__(
        self,
        comm: Communicator,
        copies: Sequence[int],
        here: Sequence[StageGradients],
        numbers: Sequence[int],
        names: Sequence[str],
        exact: bool,
        timeout_s: float,
        choice: EngineChoice,
    ) -> None:
        self._here = list(here)
        self._num_begun = 0
        parameters = self._here[0].parameters
        if exact and max(copies) > 1:
            choice.check_is_default("exact=True with several copies of a stage on a rank")
            self._sum: _EngineSum | _OrderedSum = _OrderedSum(comm, copies, parameters, numbers, timeout_s)
        else:
            self._sum = _EngineSum(comm, parameters, numbers, names, exact, timeout_s, choice)
            if len(self._here) == 1:  # the sum begins while the backward pass goes on
                self._here[0].on_ready = self._sum.ready

    def start(self) -> None:
        """Count one of this rank's copies as ready; when all are ready, start the sum."""
        self._num_begun += 1
        if self._num_begun == len(self._here):
            self._num_begun = 0
            self._sum.start([copy.sums for copy in self._here])

    def wait(self) -> None:
        """Wait for the sum, and set it in every copy on this rank."""
        for number, total in self._sum.finish().items():
            for copy in self._here:
                copy.sums[number] = total

    def close(self) -> None:
        """Give back what the engine holds. Idempotent."""
        self._sum.close()

    @property
    def engine(self) -> SummingEngine | None:
        """The engine, if one sums."""
        return self._sum.engine if isinstance(self._sum, _EngineSum) else None


class _EngineSum:
    """The sum by an engine: this rank's copies are added before."""

    def __init__(
        self,
        comm: Communicator,
        parameters: Sequence[torch.nn.Parameter],
        numbers: Sequence[int],
        names: Sequence[str],
        exact: bool,
        timeout_s: float,
        choice: EngineChoice,
    ) -> None:
        self._parameters, self._numbers = parameters, list(numbers)
        tensors = [
            TensorSpec(name, tuple(parameters[number].shape), parameters[number].dtype)
            for number, name in zip(numbers, names, strict=True)
        ]
        counts = TensorSpec(COUNTS, (len(tensors),), torch.float32)
        self.engine = choice.make(comm, [*tensors, counts], exact=exact, timeout_s=timeout_s)
        self._counts = torch.zeros(len(tensors), dtype=torch.float32, device="cpu")  # whatever torch's defaults are
        self._places = {number: place for place, number in enumerate(self._numbers)}
        self._totals: dict[int, torch.Tensor] = {}
        """What the engine sums, by place."""

    def start(self, of_copies: Sequence[Gradients]) -> None:
        total = of_copies[0]
        for other in of_copies[1:]:
            total = added(total, other)
        self._counts.copy_(torch.tensor([float(total[number] is not None) for number in self._numbers]))
        for number in reversed(self._numbers):
            if self._places[number] not in self._totals:
                gradient = total[number]
                if gradient is None:
                    gradient = torch.zeros_like(self._parameters[number], memory_format=torch.contiguous_format)
                self.ready(number, gradient)
        self.engine.start(len(self._numbers), self._counts)

    def ready(self, number: int, gradient: torch.Tensor) -> None:
        """Start the sum of a gradient."""
        place = self._places.get(number)
        if place is not None:
            # Engines sum in place, so it must be a block of memory of its own.
            self._totals[place] = _checked(gradient).detach().contiguous()
            self.engine.start(place, self._totals[place])

    def finish(self) -> dict[int, torch.Tensor | None]:
        self.engine.finish()
        exist = (self._counts > 0).tolist()
        totals, self._totals = self._totals, {}
        return {number: totals[place] if exist[place] else None for number, place in self._places.items()}

    def close(self) -> None:
        self.engine.close()


class _OrderedSum:
    """The sum in the order of copies where a rank has several: all of them are gathered, and added one by one."""

    def __init__(
        self,
        comm: Communicator,
        copies: Sequence[int],
        parameters: Sequence[torch.nn.Parameter],
        numbers: Sequence[int],
        timeout_s: float,
    ) -> None:
        by_type = sorted(numbers, key=lambda number: str(parameters[number].dtype))
        self._flats = [
            _Flat(comm, copies, parameters, list(each), timeout_s)
            for _, each in groupby(by_type, key=lambda number: parameters[number].dtype)
        ]

    def start(self, of_copies: Sequence[Gradients]) -> None:
        for flat in self._flats:
            flat.start(of_copies)

    def finish(self) -> dict[int, torch.Tensor | None]:
        return {number: total for flat in self._flats for number, total in flat.finish().items()}

    def close(self) -> None:
        pass


class _Flat:
    """The gradients of one type in one array: all values, then for each parameter 1 if it has a gradient, else 0."""

    def __init__(
        self,
        comm: Communicator,
        copies: Sequence[int],
        parameters: Sequence[torch.nn.Parameter],
        numbers: list[int],
        timeout_s: float,
    ) -> None:
        self._comm, self._timeout_s = comm, timeout_s
        self._numbers = numbers
        self._shapes = [parameters[number].shape for number in numbers]
        self._lengths = [parameters[number].numel() for number in numbers]
        self._size = sum(self._lengths) + len(numbers)
        self._counts = [count * self._size for count in copies]
        self._like = parameters[numbers[0]].detach()
        self._all: torch.Tensor | None = None
        self._work: Any = None

    def start(self, of_copies: Sequence[Gradients]) -> None:
        own = torch.cat([self._filled(gradients) for gradients in of_copies])
        self._all = self._like.new_empty(sum(self._counts))
        self._work = self._comm.all_gatherv(self._all, own, self._counts, async_op=True, timeout=self._timeout_s)

    def finish(self) -> dict[int, torch.Tensor | None]:
        assert self._all is not None
        self._work.wait(timeout=self._timeout_s)
        rows = self._all.view(-1, self._size)
        self._all = None
        total = rows[0].clone()
        for row in rows[1:]:
            total += row
        values, counts = total[: -len(self._numbers)], total[-len(self._numbers) :]
        parts = torch.split(values, self._lengths)
        return {
            number: part.view(shape) if exists else None
            for number, part, shape, exists in zip(
                self._numbers, parts, self._shapes, (counts > 0).tolist(), strict=True
            )
        }

    def _filled(self, gradients: Gradients) -> torch.Tensor:
        flat = self._like.new_zeros(self._size)
        parts = torch.split(flat[: -len(self._numbers)], self._lengths)
        for place, (part, number) in enumerate(zip(parts, self._numbers, strict=True)):
            gradient = gradients[number]
            if gradient is not None:
                part.copy_(_checked(gradient).reshape(-1))
                flat[place - len(self._numbers)] = 1
        return flat


def _checked(gradient: torch.Tensor) -> torch.Tensor:
    if gradient.layout != torch.strided:
        raise InvalidModel(
            "sparse gradients cannot be summed over copies of a stage: use sparse=False in the embedding"
        )
    return gradient
