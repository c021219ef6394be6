"""all_reduce of sparse tensors (COO): every rank gathers the entries of all ranks, and sums them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hocket.errors import InvalidArgument, UnsupportedDtype

if TYPE_CHECKING:
    from hocket.comm import Communicator


def reduce_sparse(comm: Communicator, x: torch.Tensor, reduction: str, async_op: bool = False, **how: Any) -> None:
    """Sum x over all ranks, in place. Blocking.

    Args:
        comm: communicator.
        x: sparse COO tensor, of the same shape and number of sparse dimensions on every rank.
        reduction: must be "sum".
        async_op: has no effect: later messages depend on the result of earlier ones.
        how: timeout and backend of each of the three operations that it consists of.

    Raises:
        UnsupportedDtype: `reduction` is not "sum".
        InvalidArgument: shapes or types differ between ranks; raised on every rank.
    """
    if reduction != "sum":
        raise UnsupportedDtype(f"the reduction of sparse tensors must be sum, not {reduction}")
    x_own = x.coalesce()
    indices, values = x_own.indices(), x_own.values()
    facts = (indices.shape[1], tuple(x.shape), indices.shape[0], str(x.dtype))
    all_facts = comm.all_gather_object(facts, **how)
    if len({each[1:] for each in all_facts}) > 1:
        raise InvalidArgument(f"sparse tensors must have equal shapes and types on all ranks, not {all_facts}")
    entries = [each[0] for each in all_facts]
    dense_shape = values.shape[1:]
    items = dense_shape.numel()
    num_dims = indices.shape[0]
    all_indices = torch.empty(sum(entries), num_dims, dtype=torch.int64)
    comm.all_gatherv(all_indices, indices.t().contiguous(), [num_dims * each for each in entries], **how)
    all_values = torch.empty(sum(entries), *dense_shape, dtype=x.dtype)
    comm.all_gatherv(all_values, values.contiguous(), [items * each for each in entries], **how)
    result = torch.sparse_coo_tensor(all_indices.t(), all_values, x.shape, check_invariants=False).coalesce()
    with torch.no_grad():
        x.copy_(result)
