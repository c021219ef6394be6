"""Steps of an engine with given gradients and no model, for measurements."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from hocket.comm import Communicator
from hocket.errors import InvalidArgument, WrongResult
from hocket.train.engines.engine import TensorSpec
from hocket.train.engines.registry import EngineChoice

_TIMEOUT_S = 300.0


def float32_specs(shapes: Mapping[str, tuple[int, ...]]) -> list[TensorSpec]:
    """Return gradients of single precision.

    Args:
        shapes: of the gradients, by name.
    """
    return [TensorSpec(name, shape, torch.float32) for name, shape in shapes.items()]


class EngineStep:
    """The exchange of all gradients of a model by an engine, whose sums are checked first; made by all ranks.

    Torch then has one thread.

    Args:
        choice: an engine that sums.
        comm: a communicator of all ranks.
        shapes: of the gradients, by name, in the order of the parameters; they are ready from the last to the first.

    Raises:
        InvalidArgument: the engine changes the parameters itself.
        WrongResult: a sum is wrong.
    """

    def __init__(self, choice: EngineChoice, comm: Communicator, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if choice.updates:
            raise InvalidArgument(f"engine {choice.name!r} changes the parameters itself, and has no sums to measure")
        torch.set_num_threads(1)  # ranks that share cores would wait for each other's threads
        tensors = float32_specs(shapes)
        self._engine = choice.make(comm, tensors, exact=False, timeout_s=_TIMEOUT_S)
        self._gradients = [torch.full(spec.shape, comm.rank + 1.0) for spec in tensors]
        try:
            self.runner()()
            total = comm.size * (comm.size + 1) / 2
            for spec, each in zip(tensors, self._gradients, strict=True):
                if not bool((each == total).all()):
                    raise WrongResult(f"engine {choice.name!r}: the sum of {spec.name} is not {total}")
                each.zero_()  # later sums stay finite
        except BaseException:
            self.close()
            raise

    def runner(self, compute_s: float = 0.0) -> Callable[[], None]:
        """Return a function that does a step.

        Args:
            compute_s: seconds of computation beside the exchange: products of matrices, spread over the gradients by
                size, as in a backward pass.
        """
        work = _Work(compute_s, [each.numel() for each in self._gradients])

        def run() -> None:
            for number in reversed(range(len(self._gradients))):
                work.before(number)
                self._engine.start(number, self._gradients[number])
            self._engine.finish()

        return run

    def close(self) -> None:
        """Close the engine. Idempotent."""
        self._engine.close()


class _Work:
    """Computation of given length, in parts."""

    def __init__(self, seconds: float, sizes: list[int]) -> None:
        self._matrix = torch.ones(64, 64)
        self._out = torch.empty(64, 64)
        self._counts = [0] * len(sizes)
        if not seconds:
            return
        count, begin_s = 0, time.perf_counter()
        while time.perf_counter() < begin_s + 0.05:
            torch.mm(self._matrix, self._matrix, out=self._out)
            count += 1
        per_s = count / (time.perf_counter() - begin_s)
        whole = sum(sizes)
        done = 0
        for number, size in enumerate(sizes):
            before = round(per_s * seconds * done / whole)
            done += size
            self._counts[number] = round(per_s * seconds * done / whole) - before

    def before(self, number: int) -> None:
        """Compute what stands before a gradient."""
        for _ in range(self._counts[number]):
            torch.mm(self._matrix, self._matrix, out=self._out)
