"""The sparse all-reduce of a communicator: what is needed of the code that carries it out, and the method."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, Protocol


class SparseOptions(NamedTuple):
    """The options of `sparse_all_reduce`, as they were given."""

    k: Any
    density: Any
    state: Any
    codec: Any
    algorithm: Any
    op: Any
    nonfinite: Any
    dense: Any
    timeout: float | None
    backend: str | None


class SparseSource(Protocol):
    """What carries sparse all-reduces out (hocket.collectives.sparse.sums.SparseSums)."""

    def all_reduce(self, x: Any, options: SparseOptions, async_op: bool) -> Any:
        """See `sparse_all_reduce`."""
        ...

    def steps(self, x: Any, options: SparseOptions) -> Generator[Any, None, Any]:
        """Return the steps of `all_reduce` for a vector of single precision."""
        ...


class HasSparseSums(Protocol):
    """What is needed of a communicator."""

    _sparse: SparseSource | None

    def _sparse_sums(self) -> SparseSource: ...


def sparse_all_reduce(
    comm: HasSparseSums,
    x: Any,
    k: int | None = None,
    *,
    density: float | None = None,
    state: Any = None,
    codec: Any = None,
    algorithm: str = "exact",
    op: str = "sum",
    nonfinite: str = "raise",
    dense: str = "auto",
    async_op: bool = False,
    timeout: float | None = None,
    backend: str | None = None,
) -> Any:
    """Sum the largest elements of x over all ranks, in place: x has the k largest sums, and zeros elsewhere.

    Each rank sends its k elements of largest magnitude, of equal ones the first; zeros are never sent. Of the sums at
    these places the k largest are the result, which is equal on all ranks bit for bit. In every step a rank sends and
    receives at most 2 k elements. What is not sent, or is not part of the result, stays in the residual of `state` and
    is added to x in the next step: so nothing is lost, only late.

    The operation runs on a duplicate of the communicator, in several messages. The first call makes the duplicate,
    within the communicator's timeout.

    Algorithm: Ok-Topk (Li and Hoefler, arXiv 2201.07598), with exact thresholds and regions in every step.

    Args:
        x: NumPy array or torch tensor in the host's memory, of float32, float16 or bfloat16; equally large on all
            ranks. Halves are added as float32.
        k: number of elements, from 1 to those of x.
        density: their share of x instead, above 0 to 1.
        state: `ResidualState` of x, with the residual. None: what is not sent is lost.
        codec: `ElementCodec` of the messages; by default places are packed, and values are float32.
        algorithm: "exact"; or, to compare with, what others have published: "ok-topk" (thresholds are found every 32
            steps only), "topk-a", "topk-dsa", "gtopk", "gaussian-k". Of these only "exact" and "gtopk" have at most k
            elements in the result.
        op: "sum", or "avg": the sums are divided by the number of ranks at the end. Residuals are not.
        nonfinite: "raise" refuses x with NaN or infinite elements, on all ranks. "pass" then sums all of x, so that
            they arrive on all ranks; residuals wait for the next step. A dense step does not look at the elements.
        dense: whether x, with its residual, is summed as a whole: "auto" where it is faster, as the first eight steps
            of each size tell; "never" or "always". The result tells (`is_dense`, `why`), and `state` counts.
        async_op: return at once with a work, whose wait() returns the result. Until then x and `state` must not be
            used.
        timeout: in seconds, of each message; None: that of the communicator.
        backend: name of the library that carries it; None: those that the policy chooses.

    Returns:
        A `hocket.collectives.SparseSum` with places and values of the result; or the work.

    Raises:
        InvalidArgument: k, the density, the state or x is not right; nothing is sent.
        InvalidType: x, the state or the codec is another object.
        UnsupportedDtype: x has integers or other elements.
        NotFinite: x holds NaN or infinity on some rank, and `nonfinite` is "raise"; nothing is sent, on all ranks.
        CollectiveMismatch: ranks differ in the size of x, k, or the codec; nothing is sent, on all ranks.

    Examples:
        >>> x = np.array([5, 0.5, 0, 0], np.float32) if comm.rank == 0 else np.array([0, 0.25, -3, 1], np.float32)
        >>> state = hk.ResidualState()
        >>> found = comm.sparse_all_reduce(x, k=2, state=state, dense="never")
        >>> x, found.places
        (array([ 5.,  0., -3.,  0.], dtype=float32), array([0, 2], dtype=uint32))
        >>> x = np.zeros(4, np.float32)
        >>> _ = comm.sparse_all_reduce(x, k=2, state=state, dense="never")  # what was left
        >>> x
        array([0.  , 0.75, 0.  , 1.  ], dtype=float32)
    """
    options = (k, density, state, codec, algorithm, op, nonfinite, dense, timeout, backend)
    settled = getattr(state, "_settled", None)
    if settled is not None and not async_op and (found := settled.again(comm, x, options)) is not None:
        return found
    return comm._sparse_sums().all_reduce(x, SparseOptions(*options), async_op)
