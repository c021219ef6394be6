"""The whole model, as it is after the ranks have trained its parts."""

from __future__ import annotations

import torch

from hocket.train.executor import PipelineExecutor


def merge_buffers(executor: PipelineExecutor) -> None:
    """Give all ranks the same buffers, such as running statistics; called by all ranks.

    Where a stage has several copies, each has seen other micro-batches: what is a floating number becomes the mean of
    theirs, anything else the largest.
    """
    for stage in range(executor.split.num_stages):
        holders = executor.holders(stage)
        count = holders.count(executor.comm.rank)
        for buffer in executor.split.stages[stage].buffers().values():
            if buffer.is_floating_point():
                part = buffer * (count / len(holders))
                executor.comm.all_reduce(part, timeout=executor.timeout_s)
            else:
                part = buffer.to(torch.int64)
                executor.comm.all_reduce(part, op="max", timeout=executor.timeout_s)
            buffer.copy_(part)


def collect(executor: PipelineExecutor) -> None:
    """Give all ranks the whole model: parameters from the ranks that train them; called by all ranks."""
    merge_buffers(executor)
    with torch.no_grad():
        for stage in range(executor.split.num_stages):
            root = executor.holders(stage)[0]
            for parameter in executor.split.stages[stage].parameters().values():
                executor.comm.broadcast(parameter.detach(), root, timeout=executor.timeout_s)
