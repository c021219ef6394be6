"""Matrix multiplication: rows of A are dealt out, B goes to all, and the rows of the product come back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.bench.apps.base import Problem, shares
from hocket.comm import Communicator
from hocket.errors import WrongResult

Matrix = NDArray[np.float64]


class MatrixProduct(Problem):
    """C = A B of square matrices, whose rows are the scale."""

    name = "matmul"
    usual_scale = 1024

    def _make(self, random: np.random.Generator) -> None:
        self._a, self._b = random.standard_normal((2, self.scale, self.scale))

    def solve(self, comm: Communicator) -> Matrix | None:
        n = len(self._a)
        counts = shares(n, comm.size)
        is_root = comm.rank == 0
        a = np.empty((counts[comm.rank], n))
        b = self._b if is_root else np.empty((n, n))
        elements = [each * n for each in counts]
        comm.scatterv(a, self._a if is_root else None, elements, 0)
        comm.broadcast(b, 0)
        product = self.do(comm, lambda: a @ b)
        c = np.empty((n, n)) if is_root else None
        comm.gatherv(c, a if product is None else product, elements, 0)
        return c

    def solve_alone(self) -> Matrix:
        product: Matrix = self._a @ self._b
        return product

    def num_items(self, rank: int, size: int) -> float:
        return shares(len(self._a), size)[rank]

    def work(self, rank: int, size: int) -> object:
        counts = shares(len(self._a), size)
        first = sum(counts[:rank])
        return self._a[first : first + counts[rank]] @ self._b

    def check(self, solution: Any) -> None:
        wanted = np.einsum("ij,jk->ik", self._a[:8], self._b)  # not the kernel's way
        if not np.allclose(solution, self._a @ self._b, rtol=1e-10, atol=1e-9) or not np.allclose(solution[:8], wanted):
            raise WrongResult(f"{self.name}: the product is not NumPy's")


PROBLEM = MatrixProduct
