"""Collecting the whole model from the ranks that train its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from hocket.train.data.checksum import checksum
from hocket.train.run.executor import PipelineExecutor


def merge_buffers(executor: PipelineExecutor) -> None:
    """Make the buffers, such as running statistics, equal on all ranks; called by all ranks.

    Copies of a stage have different buffers, since they compute different micro-batches. Floating-point buffers are
    averaged over the copies; of all others, the maximum is taken.
    """
    comm, split = executor.comm, executor.split
    of_ranks = comm.all_gather_object({stage: _checksums(executor, stage) for stage in executor.trained_stages()})
    for stage in range(split.num_stages):
        holders = executor.holders(stage)
        for name, buffer in split.stages[stage].buffers().items():
            if len({of_ranks[rank][stage][name] for rank in holders}) == 1:
                comm.broadcast(buffer, holders[0], timeout=executor.timeout_s)
            else:
                _merge(executor, buffer, holders)


def _checksums(executor: PipelineExecutor, stage: int) -> Mapping[str, int]:
    """Return checksums of a stage's buffers on this rank, by name."""
    buffers = executor.split.stages[stage].buffers()
    return {name: checksum(each) for name, each in buffers.items()}


def _merge(executor: PipelineExecutor, buffer: torch.Tensor, holders: Sequence[int]) -> None:
    """Merge a buffer over the ranks in `holders`; the other ranks contribute nothing, and receive the result."""
    share = holders.count(executor.comm.rank) / len(holders)
    if buffer.is_floating_point() or buffer.is_complex():
        part = buffer * share if share else torch.zeros_like(buffer)
        executor.comm.all_reduce(part, timeout=executor.timeout_s)
    else:
        part = buffer.to(torch.int64)
        if not share:
            part.fill_(torch.iinfo(torch.int64).min)
        executor.comm.all_reduce(part, op="max", timeout=executor.timeout_s)
    buffer.copy_(part)


def collect(executor: PipelineExecutor) -> None:
    """Send the whole model to all ranks, each parameter from a rank that trains it; called by all ranks."""
    merge_buffers(executor)
    with torch.no_grad():
        for stage in range(executor.split.num_stages):
            root = executor.holders(stage)[0]
            for parameter in executor.split.stages[stage].parameters().values():
                executor.comm.broadcast(parameter.detach(), root, timeout=executor.timeout_s)


def collect_copy(executor: PipelineExecutor, copy: nn.Module, *, with_buffers: bool) -> None:
    """Make a copy of the model whole on all ranks, of which every rank has the values of its stages; called by all
    ranks.

    Args:
        executor: executor of the model.
        copy: a deep copy of the model, with other content.
        with_buffers: whether to send buffers, too.
    """
    model = executor.split.model
    own, others = ([*each.parameters(), *(each.buffers() if with_buffers else ())] for each in (model, copy))
    copies = {id(tensor): other for tensor, other in zip(own, others, strict=True)}
    with torch.no_grad():
        for stage in range(executor.split.num_stages):
            root = executor.holders(stage)[0]
            of_stage = executor.split.stages[stage]
            for tensor in (*of_stage.parameters().values(), *(of_stage.buffers().values() if with_buffers else ())):
                executor.comm.broadcast(copies[id(tensor)].detach(), root, timeout=executor.timeout_s)
