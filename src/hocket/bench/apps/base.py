"""A distributed application: a problem that ranks solve together, each its share of it."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hocket.comm import Communicator
from hocket.errors import BackendUnavailable


class Problem(ABC):
    """A problem of one size, the same on every rank.

    Args:
        scale: of it; None: the usual one.
        seed: of its content.

    Attributes:
        name: of the application.
        usual_scale: that takes some tens of milliseconds.
        scale: of the problem.
        has_oracle: whether its solutions are compared with those of scikit-learn.
        seconds_per_item: what an item of the work takes on this machine; virtual ranks, who do not work, spend it.
    """

    name: ClassVar[str]
    usual_scale: ClassVar[int]
    has_oracle: ClassVar[bool] = False
    seconds_per_item: float = 0.0

    def __init__(self, scale: int | None = None, seed: int = 0) -> None:
        self.scale = self.usual_scale if scale is None else scale
        self._make(np.random.default_rng(seed))

    @abstractmethod
    def _make(self, random: np.random.Generator) -> None:
        """Make the content, of random numbers."""

    @abstractmethod
    def solve(self, comm: Communicator) -> Any:
        """Solve it together; called by all ranks. Rank 0 gets the solution, the others None."""

    def solve_alone(self) -> Any:
        """Solve it on this process, by the same kernel."""
        return self.work(0, 1)

    def num_items(self, rank: int, size: int) -> float:
        """Return how much of the work is a rank's, in items that take the same time."""
        return shares(self.scale, size)[rank]

    @abstractmethod
    def work(self, rank: int, size: int) -> object:
        """Do the work of a rank, without any communication."""

    @abstractmethod
    def check(self, solution: Any) -> None:
        """Compare a solution with that of scikit-learn or NumPy.

        Raises:
            WrongResult: it is another one.
        """

    @staticmethod
    def oracle(module: str) -> Any:
        """Return a module of scikit-learn.

        Raises:
            BackendUnavailable: it is not installed.
        """
        try:
            return importlib.import_module(f"sklearn.{module}")
        except ImportError:
            raise BackendUnavailable("solutions are checked by scikit-learn: pip install 'hocket[bench]'") from None

    def do(self, comm: Communicator, work: Callable[[], Any]) -> Any:
        """Do a rank's work, or spend the time that it takes."""
        if comm.is_virtual:
            comm.compute(self.seconds_per_item * self.num_items(comm.rank, comm.size))
            return None
        return work()


def share_of(rows: NDArray[Any], rank: int, size: int) -> NDArray[Any]:
    """Return a rank's share of rows, see `shares`."""
    counts = shares(len(rows), size)
    first = sum(counts[:rank])
    return rows[first : first + counts[rank]]


def shares(count: int, size: int) -> list[int]:
    """Return how many of `count` items each rank has: as equal as can be."""
    return [count // size + (rank < count % size) for rank in range(size)]
