"""What all compressors have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from hocket.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Generator

    import numpy as np
    from numpy.typing import NDArray

    from hocket.collectives.residual import ResidualState
    from hocket.comm import Communicator
    from hocket.comm.steps import Pending

Shape = tuple[int, ...]


@dataclass(frozen=True)
class SumRequest:
    """What is asked for, beside the array.

    Args:
        tensors: shapes of the tensors that the array is put together from.
        op: "sum" or "avg".
        nonfinite: "raise" or "pass", see `Communicator.sparse_all_reduce`.
        step: number of the step, and of the array, for random numbers.
        how: timeout and backend of operations.
    """

    tensors: tuple[Shape, ...]
    op: str
    nonfinite: str
    step: tuple[int, int]
    how: dict[str, Any]


@dataclass(frozen=True)
class CompressedSum:
    """What is known of a compressed sum on one rank.

    Args:
        nbytes: bytes of arrays that this rank has sent to others, its own ones and sums; 0 if the array was summed
            dense. An all-reduce of a part counts as its bytes, once.
        is_dense: whether the array was summed as a whole.
        why: the reason of that.

    Examples:
        >>> x = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
        >>> comm.compressed_all_reduce(x, "cast(float16)")  # 2 elements and 2 sums
        CompressedSum(nbytes=8, is_dense=False, why='as asked for')
    """

    nbytes: int
    is_dense: bool = False
    why: str = "as asked for"


class Compressor(ABC):
    """A way to sum arrays over ranks with fewer bytes, such as `Qsgd`; its repr is equal where it does the same.

    Examples:
        >>> compressor = hk.collectives.Qsgd(levels=7)
        >>> x = np.full(100, comm.rank + 1.0, np.float32)
        >>> found = comm.compressed_all_reduce(x, compressor)
        >>> abs(float(x.mean()) - 3.0) < 1.0
        True
    """

    @abstractmethod
    def steps(
        self, comm: Communicator, x: NDArray[np.float32], state: ResidualState, request: SumRequest
    ) -> Generator[Pending, None, CompressedSum]:
        """Sum x over all ranks, in place; called by all ranks.

        Args:
            comm: a communicator of all ranks.
            x: finite.
            state: of this array; what is lost goes to it.
            request: equal on all ranks.
        """

    def scatter_steps(
        self,
        comm: Communicator,
        x: NDArray[np.float32],
        out: NDArray[np.float32],
        state: ResidualState,
        request: SumRequest,
    ) -> Generator[Pending, None, CompressedSum]:
        """Sum x over all ranks, and give each rank its part of equal size; called by all ranks.

        Args:
            comm, x, state, request: see `steps`.
            out: this rank's part, which is written.

        Raises:
            InvalidArgument: there is no such sum.
        """
        raise InvalidArgument(f"{type(self).__name__} has no reduce-scatter: it sums whole tensors")


def with_residual(x: NDArray[np.float32], state: ResidualState) -> NDArray[np.float32]:
    """Return a new array of x and the residual."""
    return x.copy() if state.residual is None else x + state.residual


def checked_tensors(tensors: Any, size: int) -> tuple[Shape, ...]:
    """Return the shapes of the tensors of an array of a size.

    Raises:
        InvalidArgument: they are not.
    """
    if not isinstance(tensors, (list, tuple)):
        raise InvalidArgument(f"tensors must be shapes, such as [(64, 3), (64,)], not {tensors!r}")
    for shape in tensors:
        if not isinstance(shape, tuple) or not all(type(each) is int and each >= 0 for each in shape):
            raise InvalidArgument(f"tensors must be shapes, such as [(64, 3), (64,)], not {shape!r}")
    if sum(map(prod, tensors)) != size:
        raise InvalidArgument(f"the tensors have {sum(map(prod, tensors))} elements together, but x has {size}")
    return tuple(tensors)
