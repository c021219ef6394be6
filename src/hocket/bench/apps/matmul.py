"""Matrix multiplication: scatter the rows of A, broadcast B, and gather the rows of the product."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.bench.apps.base import Problem, share_of, shares
from hocket.comm import Communicator
from hocket.errors import WrongResult

Matrix = NDArray[np.float64]


class MatrixProduct(Problem):
    """C = A B of square matrices; the scale is the number of their rows.

    Ranks allocate their arrays once and reuse them for the next solution, since the first touch of new memory takes
    longer than all messages.
    """

    name = "matmul"
    usual_scale = 2048

    def _make(self, random: np.random.Generator) -> None:
        self._a, self._b = random.standard_normal((2, self.scale, self.scale))
        self._array_cache: dict[tuple[str, int], Matrix] = {}

    def solve(self, comm: Communicator) -> Matrix | None:
        n = self.scale
        rows = shares(n, comm.size)
        is_root = comm.rank == 0
        array = self._allocate if comm.is_virtual else self._array  # virtual ranks share this object, and move no data
        a, own = array("rows of A", rows[comm.rank]), array("rows of C", rows[comm.rank])
        b = self._b if is_root else array("B", n)
        c = array("C", n) if is_root else None
        counts = [each * n for each in rows]
        comm.scatterv(a, self._a if is_root else None, counts, 0)
        comm.broadcast(b, 0)
        self.do(comm, lambda: np.matmul(a, b, out=own))
        comm.gatherv(c, own, counts, 0)
        return c

    def work(self, rank: int, size: int) -> object:
        own = share_of(self._a, rank, size)
        return np.matmul(own, self._b, out=self._array("rows of C", len(own)))

    def check(self, solution: Any) -> None:
        head = np.einsum("ij,jk->ik", self._a[:8], self._b)  # independent of the kernel: the first 8 rows
        if not np.allclose(solution, self._a @ self._b, rtol=1e-10, atol=1e-9) or not np.allclose(solution[:8], head):
            raise WrongResult(f"{self.name}: the product differs from NumPy's")

    def _array(self, name: str, num_rows: int) -> Matrix:
        if (name, num_rows) not in self._array_cache:
            array = self._array_cache[name, num_rows] = self._allocate(name, num_rows)
            array.fill(0)
        return self._array_cache[name, num_rows]

    def _allocate(self, name: str, num_rows: int) -> Matrix:
        return np.empty((num_rows, self.scale))


PROBLEM = MatrixProduct
