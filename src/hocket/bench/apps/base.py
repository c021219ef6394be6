"""The interface of a distributed application: a problem that is divided into one share per rank."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hocket.comm import Communicator
from hocket.errors import BackendUnavailable, InvalidArgument


class Problem(ABC):
    """A problem of one size, the same on every rank.

    Args:
        scale: size of the problem; None: `usual_scale`.
        seed: seed of its random content.

    Raises:
        InvalidArgument: the scale is too small.

    Attributes:
        name: name of the application.
        usual_scale: default scale; a solution takes some tens of milliseconds.
        least_scale: smallest scale of a valid problem.
        scale: size of the problem.
        has_oracle: whether its solutions are compared with those of scikit-learn.
        seconds_per_item: seconds of one item of the work on this machine; virtual ranks spend this time instead of
            doing the work.
    """

    name: ClassVar[str]
    usual_scale: ClassVar[int]
    least_scale: ClassVar[int] = 1
    has_oracle: ClassVar[bool] = False
    seconds_per_item: float = 0.0

    def __init__(self, scale: int | None = None, seed: int = 0) -> None:
        self.scale = self.usual_scale if scale is None else scale
        if self.scale < self.least_scale:
            raise InvalidArgument(f"{self.name} needs a scale of at least {self.least_scale}, not {self.scale}")
        self._make(np.random.default_rng(seed))

    @abstractmethod
    def _make(self, random: np.random.Generator) -> None:
        """Make the content from random numbers."""

    @abstractmethod
    def solve(self, comm: Communicator) -> Any:
        """Solve the problem together; all ranks call it. Return the solution on rank 0, None on the others."""

    def solve_alone(self) -> Any:
        """Solve the problem in this process, with the same kernel."""
        return self.work(0, 1)

    def num_items(self, rank: int, size: int) -> float:
        """Return the amount of a rank's work, in items that take equally long."""
        return shares(self.scale, size)[rank]

    @abstractmethod
    def work(self, rank: int, size: int) -> object:
        """Do the work of a rank, without communication."""

    @abstractmethod
    def check(self, solution: Any) -> None:
        """Compare a solution with that of scikit-learn or NumPy.

        Raises:
            WrongResult: the solution is different.
        """

    @staticmethod
    def oracle(module: str) -> Any:
        """Return a module of scikit-learn.

        Raises:
            BackendUnavailable: scikit-learn is not installed.
        """
        try:
            return importlib.import_module(f"sklearn.{module}")
        except ImportError:
            raise BackendUnavailable("solutions are checked by scikit-learn: pip install 'hocket[bench]'") from None

    def do(self, comm: Communicator, work: Callable[[], Any]) -> Any:
        """Do a rank's work and return its result; a virtual rank only spends the time of it, and returns None."""
        if comm.is_virtual:
            comm.compute(self.seconds_per_item * self.num_items(comm.rank, comm.size))
            return None
        return work()


def share_of(rows: NDArray[Any], rank: int, size: int) -> NDArray[Any]:
    """Return a rank's share of the rows, see `shares`."""
    counts = shares(len(rows), size)
    first = sum(counts[:rank])
    return rows[first : first + counts[rank]]


def shares(count: int, size: int) -> list[int]:
    """Return the number of items of each rank; the numbers differ by 1 at most."""
    return [count // size + (rank < count % size) for rank in range(size)]
