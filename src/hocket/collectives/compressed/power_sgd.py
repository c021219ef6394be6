"""PowerSGD: each matrix of gradients as a product of two factors of few columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from hocket.collectives.compressed.compressor import CompressedSum, Compressor, Shape, SumRequest, with_residual
from hocket.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from hocket.collectives.residual import ResidualState
    from hocket.comm import Communicator
    from hocket.comm.steps import Pending

Draw = Callable[[Sequence[Shape]], Sequence["NDArray[np.float32]"]]
"""Returns normal random numbers for factors of some shapes, equal on all ranks."""


@dataclass(frozen=True)
class PowerSgd(Compressor):
    """Sums matrices by their largest directions; what is left waits in the residual.

    A tensor is a matrix with as many rows as its first dimension. One step of subspace iteration from the factors of
    the step before gives the directions: two all-reduces of (rows + columns) * rank elements. Tensors for which that is
    not much shorter are summed as they are.

    Algorithm: Vogels, Karimireddy and Jaggi, "PowerSGD", NeurIPS 2019, arXiv 1905.13727.

    On ranks whose processors differ, results can differ by rounding.

    Args:
        rank: number of columns of the factors.
        min_rate: a matrix is compressed if its factors have so many times fewer elements, or still fewer.
        seed: of the first factors.
        draw: gives the first factors instead.

    Raises:
        InvalidArgument, InvalidType: an argument is out of range, or of another type.

    Examples:
        >>> x = np.outer(np.arange(8.0), np.ones(8)).astype(np.float32)  # of rank 1: nothing is lost
        >>> found = comm.compressed_all_reduce(x, "power-sgd(rank=1)")
        >>> np.round(x[:, 0]), found.nbytes  # 2 factors of 8 elements
        (array([ 0.,  2.,  4.,  6.,  8., 10., 12., 14.], dtype=float32), 64)
    """

    rank: int = 1
    min_rate: float = 2.0
    seed: int = 0
    draw: Draw | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.rank) is not int or self.rank < 1:
            raise InvalidArgument(f"rank must be an int of 1 or more, not {self.rank!r}")
        if isinstance(self.min_rate, bool) or not isinstance(self.min_rate, (int, float)) or not self.min_rate > 0:
            raise InvalidArgument(f"min_rate must be a number above 0, not {self.min_rate!r}")
        if type(self.seed) is not int or self.seed < 0:
            raise InvalidArgument(f"seed must be an int of 0 or more, not {self.seed!r}")
        if self.draw is not None and not callable(self.draw):
            raise InvalidType(f"draw must be a function, not {type(self.draw).__name__}")

    def steps(
        self, comm: Communicator, x: NDArray[np.float32], state: ResidualState, request: SumRequest
    ) -> Generator[Pending, None, CompressedSum]:
        """See `Compressor.steps`."""
        total = with_residual(x, state)
        matrices, whole = self._split(total, request.tensors)
        rights = self._right_factors(state, matrices, request.step[0])
        others = np.concatenate([total[each] for each in whole]) if whole else np.empty(0, np.float32)
        lefts = {number: matrix @ rights[number] for number, (matrix, _) in matrices.items()}
        works = []
        if len(others):
            works.append(comm.all_reduce(others, async_op=True, **request.how))
        if lefts:
            packed = _packed(lefts)
            works.append(comm.all_reduce(packed, async_op=True, **request.how))
        yield from works
        if lefts:
            lefts = {number: orthogonal(each) for number, each in _unpacked(packed, lefts).items()}
            products = {number: matrix.T @ lefts[number] for number, (matrix, _) in matrices.items()}
            packed_products = _packed(products)
            yield comm.all_reduce(packed_products, async_op=True, **request.how)
            rights = _unpacked(packed_products, products)
        scale = np.float32(1 / comm.size)
        for number, (_, at) in matrices.items():
            x[at] = (lefts[number] @ rights[number].T).reshape(-1)
            total[at] -= x[at] * scale
        begin = 0
        for at in whole:
            size = at.stop - at.start
            x[at] = others[begin : begin + size]
            total[at] = 0
            begin += size
        if request.op == "avg":
            x *= scale
        state.residual, state.factors = total, rights
        if not matrices:
            why = f"no tensor is a matrix that factors of rank {self.rank} make {self.min_rate:g} times smaller"
            return CompressedSum(0, True, why)
        sent = sum(each.nbytes for each in (others, *lefts.values(), *rights.values()))
        return CompressedSum(sent * (comm.size > 1))

    def _split(
        self, x: NDArray[np.float32], tensors: Sequence[Shape]
    ) -> tuple[dict[int, tuple[NDArray[np.float32], slice]], list[slice]]:
        """Return views of the matrices that are compressed, by the number of their tensor, with their places in x; and
        the places of all others."""
        matrices, whole, begin = {}, [], 0
        for number, shape in enumerate(tensors):
            at = slice(begin, begin + prod(shape))
            begin = at.stop
            rows = shape[0] if shape else 1
            columns = (at.stop - at.start) // rows if rows else 0
            if (rows + columns) * min(rows, columns, self.rank) * self.min_rate < rows * columns:
                matrices[number] = x[at].reshape(rows, columns), at
            elif at.stop > at.start:
                whole.append(at)
        return matrices, whole

    def _right_factors(
        self, state: ResidualState, matrices: dict[int, tuple[NDArray[np.float32], slice]], step: int
    ) -> dict[int, NDArray[np.float32]]:
        """Return orthogonal factors from which the step begins."""
        shapes = {number: (matrix.shape[1], min(*matrix.shape, self.rank)) for number, (matrix, _) in matrices.items()}
        known = {
            number: each for number, each in state.factors.items() if number in shapes and each.shape == shapes[number]
        }
        # From a column of zeros nothing would ever come back. Factors are equal on all ranks, and so is this.
        gone = {number: (each == 0).all(0) for number, each in known.items()}
        if any(columns.any() for columns in gone.values()):
            fresh = self._numpy_draw(step)([shapes[number] for number in known])
            known = {
                number: np.where(gone[number], other, each)
                for (number, each), other in zip(known.items(), fresh, strict=True)
            }
        if len(known) < len(shapes):
            # Tensors of one shape follow each other, as in torch's hook: its random numbers are then the same.
            order = sorted(shapes, key=lambda number: next(
                place for place, other in enumerate(shapes) if matrices[other][0].shape == matrices[number][0].shape
            ))  # fmt: skip
            drawn = (self.draw or self._numpy_draw(step))([shapes[number] for number in order])
            known = {**dict(zip(order, drawn, strict=True)), **known}
        return {number: orthogonal(each) for number, each in known.items()}

    def _numpy_draw(self, step: int) -> Draw:
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence((self.seed, step))))
        return lambda shapes: [random.standard_normal(shape, np.float32) for shape in shapes]


def orthogonal(columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return orthonormal columns that span the same; a column of zeros becomes some other one."""
    return np.linalg.qr(columns.astype(np.float64))[0].astype(np.float32)


def _packed(factors: dict[int, NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate([each.reshape(-1) for each in factors.values()])


def _unpacked(packed: NDArray[np.float32], like: dict[int, NDArray[np.float32]]) -> dict[int, NDArray[np.float32]]:
    parts = np.split(packed, np.cumsum([each.size for each in like.values()])[:-1])
    return {number: part.reshape(each.shape) for (number, each), part in zip(like.items(), parts, strict=True)}
