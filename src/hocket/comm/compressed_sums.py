"""Compressed sums of a communicator: what is needed of the code that carries them out, and the methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class CompressedOptions(NamedTuple):
    """The options of `compressed_all_reduce`, as they were given."""

    compressor: Any
    state: Any
    tensors: Any
    op: Any
    nonfinite: Any
    timeout: float | None
    backend: str | None


class CompressedSource(Protocol):
    """What carries compressed sums out (hocket.collectives.compressed.sums.CompressedSums)."""

    def all_reduce(self, x: Any, options: CompressedOptions, async_op: bool) -> Any:
        """See `compressed_all_reduce`."""
        ...

    def reduce_scatter(self, out: Any, x: Any, options: CompressedOptions, async_op: bool) -> Any:
        """See `compressed_reduce_scatter`."""
        ...


class HasCompressedSums(Protocol):
    """What is needed of a communicator."""

    def _compressed_sums(self) -> CompressedSource: ...


def compressed_all_reduce(
    comm: HasCompressedSums,
    x: Any,
    compressor: Any,
    *,
    state: Any = None,
    tensors: Sequence[tuple[int, ...]] | None = None,
    op: str = "sum",
    nonfinite: str = "raise",
    async_op: bool = False,
    timeout: float | None = None,
    backend: str | None = None,
) -> Any:
    """Sum x over all ranks, in place, with fewer bytes; what that loses is added to x in the next step.

    The operation runs on a duplicate of the communicator, in several messages. The first call makes the duplicate,
    within the communicator's timeout.

    Args:
        x: NumPy array or torch tensor in the host's memory, of float32, float16 or bfloat16; equally large on all
            ranks. Halves are added as float32.
        compressor: a compressor, such as ``hk.collectives.PowerSgd(rank=2)``, or its text, such as
            ``"power-sgd(rank=2)"``; equal on all ranks. Names and arguments: `hocket.collectives.compressors`.
        state: `ResidualState` of x. None: what is not sent is lost.
        tensors: shapes of the tensors that x is put together from, for compressors of matrices; None: x is one.
        op: "sum" or "avg".
        nonfinite: "raise" refuses x with NaN or infinite elements, on all ranks. "pass" then sums all of x, so that
            they arrive on all ranks; the state does not change.
        async_op: return at once with a work, whose wait() returns the result. Until then x and `state` must not be
            used.
        timeout: in seconds, of each message; None: that of the communicator.
        backend: name of the library that carries it; None: those that the policy chooses.

    Returns:
        A `hocket.collectives.CompressedSum`; or the work.

    Raises:
        InvalidArgument: the compressor, the state or x is not right; nothing is sent.
        InvalidType: x, the state or the compressor is another object.
        UnsupportedDtype: x has integers or other elements.
        NotFinite: x holds NaN or infinity on some rank, and `nonfinite` is "raise"; nothing is sent, on all ranks.
        CollectiveMismatch: ranks differ in the size of x, or in the compressor; nothing is sent, on all ranks.

    Examples:
        >>> x = np.array([1.0, -3.0, 0.5, 0.5], np.float32)
        >>> state = hk.ResidualState()
        >>> found = comm.compressed_all_reduce(x, "cast(bfloat16)", state=state)
        >>> x, found.nbytes
        (array([ 2., -6.,  1.,  1.], dtype=float32), 8)
    """
    options = CompressedOptions(compressor, state, tensors, op, nonfinite, timeout, backend)
    return comm._compressed_sums().all_reduce(x, options, async_op)


def compressed_reduce_scatter(
    comm: HasCompressedSums,
    out: Any,
    x: Any,
    compressor: Any,
    *,
    state: Any = None,
    op: str = "sum",
    nonfinite: str = "raise",
    async_op: bool = False,
    timeout: float | None = None,
    backend: str | None = None,
) -> Any:
    """Sum x over all ranks with fewer bytes, and give each rank its part of equal size.

    Args:
        out: this rank's part, of the type of x.
        x, compressor, state, op, nonfinite, async_op, timeout, backend: see `compressed_all_reduce`; x has as many
            elements as the parts of all ranks, and is not changed.

    Returns:
        A `hocket.collectives.CompressedSum`; or the work.

    Raises the errors of `compressed_all_reduce`, and:
        InvalidArgument: the compressor sums whole tensors only, or `out` has another size.

    Examples:
        >>> x, out = np.array([1.0, -3.0, 1.0, -3.0], np.float32), np.empty(2, np.float32)
        >>> _ = comm.compressed_reduce_scatter(out, x, "cast(bfloat16)")
        >>> out
        array([ 2., -6.], dtype=float32)
    """
    options = CompressedOptions(compressor, state, None, op, nonfinite, timeout, backend)
    return comm._compressed_sums().reduce_scatter(out, x, options, async_op)
