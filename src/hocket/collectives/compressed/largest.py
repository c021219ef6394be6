"""Compressors that send the largest elements: Ok-Topk, and deep gradient compression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket import _native
from hocket.collectives.compressed.compressor import CompressedSum, Compressor, SumRequest, with_residual
from hocket.collectives.sparse.elements import ElementCodec, Elements
from hocket.collectives.sparse.exchange import scatter_and_add
from hocket.comm.sparse_sums import SparseOptions
from hocket.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray

    from hocket.collectives.residual import ResidualState
    from hocket.collectives.sparse.sums import SparseSum
    from hocket.comm import Communicator
    from hocket.comm.steps import Pending

_WARMUP_BASE = 0.25
"""Of deep gradient compression: the density of the first stage, and by which it falls from stage to stage."""


@dataclass(frozen=True)
class OkTopk(Compressor):
    """Sums the largest elements: `Communicator.sparse_all_reduce` as a compressor.

    Args:
        density: share of the elements, above 0 to 1.
        places, values: see `ElementCodec`.
        dense: "auto" sums an array as a whole where that is faster, but for reduce-scatters; "never" and "always".

    Raises:
        InvalidArgument: an argument is out of range.

    Examples:
        >>> x = np.array([8.0, 4.0, 2.0, 1.0], np.float32)
        >>> _ = comm.compressed_all_reduce(x, "ok-topk(density=0.5, dense=never)")
        >>> x
        array([16.,  8.,  0.,  0.], dtype=float32)
    """

    density: float = 0.01
    places: str = "packed"
    values: str = "float32"
    dense: str = "auto"

    def __post_init__(self) -> None:
        _check_density(self.density)
        if self.dense not in ("auto", "never", "always"):
            raise InvalidArgument(f"dense must be one of auto, never, always, not {self.dense!r}")
        _ = self._codec

    @property
    def _codec(self) -> ElementCodec:
        return ElementCodec(self.places, self.values)

    def steps(
        self, comm: Communicator, x: NDArray[np.float32], state: ResidualState, request: SumRequest
    ) -> Generator[Pending, None, CompressedSum]:
        """See `Compressor.steps`."""
        found = yield from _sparse_sum(comm, x, state, request, self.density, self._codec, self.dense)
        return CompressedSum(sum(found.nbytes), found.is_dense, found.why)

    def scatter_steps(
        self,
        comm: Communicator,
        x: NDArray[np.float32],
        out: NDArray[np.float32],
        state: ResidualState,
        request: SumRequest,
    ) -> Generator[Pending, None, CompressedSum]:
        """See `Compressor.scatter_steps`: the first phase of a sparse sum, in regions of equal size.

        So a rank sends at most its share of the elements, and may receive more than that, where the elements of all
        ranks lie in its part.
        """
        if self.dense == "always":
            total = with_residual(x, state)
            yield comm.reduce_scatter(out, total, request.op, async_op=True, **request.how)
            state.residual = None
            return CompressedSum(0, True, "dense='always'")
        total = x.copy()
        k = max(round(self.density * len(x)), 1)
        selected = (
            _native.select_largest(x, k) if state.residual is None
            else _native.select_largest(x, k, state.residual, total)
        )  # fmt: skip
        assert selected is not None  # x is finite
        own = Elements(selected[0], selected[1])
        cuts = len(x) * np.arange(comm.size + 1, dtype=np.int64) // comm.size
        sums, carried, nbytes = yield from scatter_and_add(comm, own, cuts, self._codec, **request.how)
        _native.subtract_kept(total, own.places, carried, own.places)
        out.fill(0)
        out[sums.places - np.uint32(cuts[comm.rank])] = sums.values
        if request.op == "avg":
            out /= np.float32(comm.size)
        state.residual = total
        return CompressedSum(nbytes)


@dataclass(frozen=True)
class Dgc(Compressor):
    """Deep gradient compression: the largest elements of gradients with momentum.

    Momentum is added up on each rank before elements are selected, so use an optimizer without momentum (SGD with
    momentum=0). Where an element was sent, its momentum begins anew. Unlike the paper's, the sum has only `density` of
    its elements; what it drops is kept.

    Algorithm: Lin et al., "Deep gradient compression", ICLR 2018, arXiv 1712.01887.

    Args:
        density: share of the elements, above 0 to 1.
        momentum: from 0 to below 1.
        max_norm: the array is scaled down, on each rank, to this Euclidean norm divided by the square root of the
            number of ranks, if it is longer; None: it is not.
        warmup_steps: in so many first steps the density falls from 1/4 in stages of 1/4.

    Raises:
        InvalidArgument: an argument is out of range.

    Examples:
        >>> state = hk.ResidualState()
        >>> for _ in range(2):
        ...     x = np.array([4.0, 3.0], np.float32)
        ...     _ = comm.compressed_all_reduce(x, "dgc(density=0.5, momentum=0.5)", state=state)
        >>> x  # of each rank 3 + (0.5 * 3 + 3), against 4
        array([ 0., 15.], dtype=float32)
    """

    density: float = 0.001
    momentum: float = 0.9
    max_norm: float | None = None
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        _check_density(self.density)
        if isinstance(self.momentum, bool) or not isinstance(self.momentum, (int, float)) or not 0 <= self.momentum < 1:
            raise InvalidArgument(f"momentum must be a number from 0 to below 1, not {self.momentum!r}")
        norm = self.max_norm
        if norm is not None and (
            isinstance(norm, bool) or not isinstance(norm, (int, float)) or not 0 < norm < float("inf")
        ):
            raise InvalidArgument(f"max_norm must be a finite number above 0, or None, not {norm!r}")
        if type(self.warmup_steps) is not int or self.warmup_steps < 0:
            raise InvalidArgument(f"warmup_steps must be an int of 0 or more, not {self.warmup_steps!r}")

    def density_at(self, step: int) -> float:
        """Return the share of the elements that are sent in a step.

        Examples:
            >>> dgc = hk.collectives.Dgc(density=0.01, warmup_steps=4)
            >>> [dgc.density_at(step) for step in range(6)]
            [0.25, 0.0625, 0.015625, 0.01, 0.01, 0.01]
        """
        if step >= self.warmup_steps:
            return self.density
        num_stages = 0
        while _WARMUP_BASE ** (num_stages + 1) > self.density:
            num_stages += 1
        stage = step * (num_stages + 1) // self.warmup_steps
        return max(_WARMUP_BASE ** (stage + 1), self.density)

    def steps(
        self, comm: Communicator, x: NDArray[np.float32], state: ResidualState, request: SumRequest
    ) -> Generator[Pending, None, CompressedSum]:
        """See `Compressor.steps`."""
        if self.max_norm is not None:
            norm, most = float(np.linalg.norm(x.astype(np.float64))), self.max_norm / comm.size**0.5
            if norm > most:
                x *= np.float32(most / norm)
        momentum = x.copy() if state.momentum is None else np.float32(self.momentum) * state.momentum + x
        total = momentum if state.residual is None else momentum + state.residual
        x[:] = momentum
        density = self.density_at(request.step[0])
        found = yield from _sparse_sum(comm, x, state, request, density, ElementCodec(), "never")
        if state.residual is not None:  # it is None only if the elements became infinite
            momentum[found.places[state.residual[found.places] != total[found.places]]] = 0
        state.momentum = momentum
        return CompressedSum(sum(found.nbytes), found.is_dense, found.why)


def _sparse_sum(
    comm: Communicator,
    x: NDArray[np.float32],
    state: ResidualState,
    request: SumRequest,
    density: float,
    codec: ElementCodec,
    dense: str,
) -> Generator[Pending, None, SparseSum]:
    options = SparseOptions(
        None, density, state, codec, "exact", request.op, request.nonfinite, dense,
        request.how["timeout"], request.how.get("backend"),
    )  # fmt: skip
    found: SparseSum = yield from comm._sparse_sums().steps(x, options)
    return found


def _check_density(density: Any) -> None:
    if isinstance(density, bool) or not isinstance(density, (int, float)) or not 0 < density <= 1:
        raise InvalidArgument(f"density must be a number above 0 and at most 1, not {density!r}")
