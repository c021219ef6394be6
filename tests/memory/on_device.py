"""Every collective on arrays in device memory, compared with NumPy; the caller moves the arrays there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

import hocket as hk

Numbers = np.ndarray[Any, Any]


class Arrays(Protocol):
    """Moves content between NumPy and arrays on a device."""

    def put(self, x: Numbers) -> Any:
        """Make an array on the device."""

    def read(self, array: Any) -> Numbers:
        """Return a copy of its content."""

    def view(self, array: Any, begin: int, count: int) -> Any:
        """Return some items of it, without a copy."""


def check_collectives(
    comm: hk.Communicator,
    arrays: Arrays,
    count: int,
    dtype: str,
    watch: Callable[[str, Callable[[], object]], object] = lambda name, call: call(),
) -> None:
    """Run every collective with `count` items per rank, and compare with NumPy.

    Args:
        watch: makes a call, and can check other things about it.
    """
    rank, size = comm.rank, comm.size
    put = arrays.put
    rng = np.random.default_rng(count)
    all_in = rng.integers(0, 50, (size, size, count)).astype(dtype)
    all_x = all_in[:, 0]
    counts = [count + 700 * peer for peer in range(size)]

    def check(name: str, given: list[Any], call: Callable[..., object], expected: Numbers) -> None:
        watch(name, lambda: call(*given))
        np.testing.assert_array_equal(arrays.read(given[0]), expected, err_msg=f"{name} of {count} {dtype}")

    zeros = np.zeros((size, count), dtype)
    check("all_reduce", [put(all_x[rank])], comm.all_reduce, all_x.sum(0, dtype))
    check("max", [put(all_x[rank])], lambda x: comm.all_reduce(x, "max"), all_x.max(0))
    check("reduce", [put(all_x[rank])], lambda x: comm.reduce(x, 1), all_x.sum(0, dtype) if rank == 1 else all_x[rank])
    check("scan", [put(all_x[rank])], comm.scan, all_x[: rank + 1].sum(0, dtype))
    check("broadcast", [put(all_x[rank])], lambda x: comm.broadcast(x, size - 1), all_x[size - 1])
    check("all_gather", [put(zeros), put(all_x[rank])], comm.all_gather, all_x)
    check("reduce_scatter", [put(zeros[0]), put(all_in[rank])], comm.reduce_scatter, all_in.sum(0, dtype)[rank])
    check("all_to_all", [put(zeros), put(all_in[rank])], comm.all_to_all, all_in[:, rank])
    if rank == 0:
        check("gather", [put(zeros), put(all_x[rank])], lambda out, x: comm.gather(out, x, 0), all_x)
        check("scatter", [put(zeros[0]), put(all_in[0])], lambda out, x: comm.scatter(out, x, 0), all_in[0, 0])
    else:
        check("gather", [put(all_x[rank])], lambda x: comm.gather(None, x, 0), all_x[rank])
        check("scatter", [put(zeros[0])], lambda out: comm.scatter(out, None, 0), all_in[0, rank])
    ragged = [np.full(n, peer + 1, dtype) for peer, n in enumerate(counts)]
    joined = np.concatenate(ragged)
    check("all_gatherv", [put(np.zeros(sum(counts), dtype)), put(ragged[rank])],
          lambda out, x: comm.all_gatherv(out, x, counts), joined)  # fmt: skip
    check("reduce_scatterv", [put(np.zeros(counts[rank], dtype)), put(joined)],
          lambda out, x: comm.reduce_scatterv(out, x, counts), ragged[rank] * np.dtype(dtype).type(size))  # fmt: skip
    check("all_to_allv", [put(np.zeros(size * counts[rank], dtype)), put(joined)],
          lambda out, x: comm.all_to_allv(out, x, [counts[rank]] * size, counts),
          np.tile(ragged[rank], size))  # fmt: skip
    # In place in the larger array, as in FSDP.
    whole = put(np.where(np.arange(size)[:, None] == rank, all_x, 0).astype(dtype))
    check("own block", [whole, arrays.view(whole, rank * count, count)], comm.all_gather, all_x)
