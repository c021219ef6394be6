"""Gradient buckets of DistributedDataParallel in memory that the ranks of a host share.

For FSDP2, call ``model.set_allocate_memory_from_process_group_for_comm(True)``: it then takes its buffers from the
process group.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, GradBucket
from torch.nn.parallel import DistributedDataParallel

from hocket.errors import InvalidType
from hocket.torch.process_group import HocketProcessGroup, process_group_of


def use_symmetric_buckets(model: DistributedDataParallel) -> None:
    """Put the gradient buckets of a model into shared memory, so that the reductions need no copies.

    This registers a communication hook, and a model can have one hook only. Gradients are averaged, as without the
    hook. A bucket is moved when it is reduced for the first time.

    Args:
        model: a model whose process group has the backend "hocket".

    Raises:
        InvalidType: `model` is not a DistributedDataParallel.
        InvalidArgument: its process group has another backend.

    Examples:
        >>> import torch
        >>> store = torch.distributed.FileStore("buckets", 2)
        >>> torch.distributed.init_process_group("hocket", store=store, rank=comm.rank, world_size=2)
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
        >>> hk.torch.use_symmetric_buckets(model)
        >>> model(torch.full((1, 1), float(comm.rank))).sum().backward()
        >>> model.module.weight.grad  # the mean of 0 and 1
        tensor([[0.5000]])
        >>> torch.distributed.destroy_process_group()
    """
    if not isinstance(model, DistributedDataParallel):
        raise InvalidType(f"model must be a DistributedDataParallel, not {type(model).__name__}")
    model.register_comm_hook(_Buckets(process_group_of(model.process_group)), _Buckets.reduce)


class _Buckets:
    def __init__(self, group: HocketProcessGroup) -> None:
        self._group = group
        self._moved: dict[int, int] = {}  # addresses of buckets in shared memory, by the bucket's index
        self._options = AllreduceOptions()
        self._options.reduceOp = dist.ReduceOp.AVG  # type: ignore[assignment]

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if self._moved.get(bucket.index()) != buffer.data_ptr():  # DDP makes new buckets after the first step
            self._group.communicator.symmetric_storage([buffer])
            self._moved[bucket.index()] = buffer.data_ptr()
        future: Any = self._group.allreduce([buffer], self._options).get_future()
        reduced: torch.futures.Future[torch.Tensor] = future.then(lambda done: done.value()[0])
        return reduced
