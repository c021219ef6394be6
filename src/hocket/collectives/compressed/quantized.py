"""The sum of quantized arrays: each rank adds a part, and the sums are quantized again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.errors import WrongResult

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.random import Generator as Random
    from numpy.typing import NDArray

    from hocket.collectives.compressed.quantizers import Quantizer
    from hocket.comm import Communicator
    from hocket.comm.steps import Pending


@dataclass(frozen=True)
class QuantizedSum:
    """What this rank has sent.

    Args:
        lost: what its elements had beyond what their receivers have read, and its sums beyond what all have read.
        nbytes: bytes that it has sent to others.
    """

    lost: NDArray[np.float32]
    nbytes: int


def quantized_all_reduce(
    comm: Communicator, x: NDArray[np.float32], quantizer: Quantizer, random: Random, **how: Any
) -> Generator[Pending, None, QuantizedSum]:
    """Sum x over all ranks, in place, equal on all ranks bit for bit; called by all ranks.

    Each rank gets a part of equal size of every rank's array, adds the parts in the order of ranks, and gives all ranks
    the sums. Both ways elements are quantized: 2 (P - 1) / P of an encoded array is sent, whatever P is.

    Args:
        comm: a communicator of all ranks.
        x: equally large on all ranks, and finite.
        quantizer: equal on all ranks.
        random: of this rank, for quantizers that need it.
        how: timeout and backend, as for `Communicator.all_to_allv`.
    """
    size, num_ranks, rank = len(x), comm.size, comm.rank
    cuts = [size * each // num_ranks for each in range(num_ranks + 1)]
    messages = [quantizer.encode(x[begin:end], random) for begin, end in zip(cuts, cuts[1:], strict=False)]
    lost = x - np.concatenate(
        [_decoded(quantizer, each, end - begin, rank)
         for each, begin, end in zip(messages, cuts, cuts[1:], strict=False)]
    )  # fmt: skip
    in_nbytes = np.array([len(each) for each in messages], np.int64)
    out_nbytes = np.empty_like(in_nbytes)
    yield comm.all_to_all(out_nbytes, in_nbytes, async_op=True, **how)
    out = np.empty(int(out_nbytes.sum()), np.uint8)
    yield comm.all_to_allv(
        out, np.concatenate(messages), out_nbytes.tolist(), in_nbytes.tolist(), async_op=True, **how
    )
    own = slice(cuts[rank], cuts[rank + 1])
    sums = np.zeros(cuts[rank + 1] - cuts[rank], np.float32)
    for source, each in enumerate(np.split(out, np.cumsum(out_nbytes)[:-1])):
        sums += _decoded(quantizer, each, len(sums), source)
    message = quantizer.encode(sums, random)
    lost[own] += sums - _decoded(quantizer, message, len(sums), rank)
    nbytes = np.empty(num_ranks, np.int64)
    yield comm.all_gather(nbytes, np.array([len(message)], np.int64), async_op=True, **how)
    out = np.empty(int(nbytes.sum()), np.uint8)
    yield comm.all_gatherv(out, message, nbytes.tolist(), async_op=True, **how)
    for source, each in enumerate(np.split(out, np.cumsum(nbytes)[:-1])):
        x[cuts[source] : cuts[source + 1]] = _decoded(quantizer, each, cuts[source + 1] - cuts[source], source)
    sent = int(in_nbytes.sum() - in_nbytes[rank]) + len(message) * (num_ranks - 1)
    return QuantizedSum(lost, sent)


def _decoded(quantizer: Quantizer, message: NDArray[np.uint8], size: int, rank: int) -> NDArray[np.float32]:
    found = quantizer.decode(message, size)
    if found is None:
        raise WrongResult(f"the message of rank {rank} in a quantized sum is damaged, or of another quantizer")
    return found
