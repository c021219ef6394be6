"""Gradient buckets of DistributedDataParallel in memory that the ranks of a host share.

FSDP2 asks the process group for its buffers: ``model.set_allocate_memory_from_process_group_for_comm(True)``.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, GradBucket
from torch.nn.parallel import DistributedDataParallel

from hocket.errors import InvalidType
from hocket.torch.process_group import HocketProcessGroup, process_group_of


def use_symmetric_buckets(model: DistributedDataParallel) -> None:
    """Have the gradient buckets of a model lie in shared memory, so that reducing them skips the copies.

    A communication hook of the model, so it can have no other one; gradients are averaged, as without it. A bucket is
    moved when it is reduced for the first time.

    Args:
        model: whose process group has the backend "hocket".

    Raises:
        InvalidType: it is no DistributedDataParallel.
        InvalidArgument: its process group has another backend.
    """
    if not isinstance(model, DistributedDataParallel):
        raise InvalidType(f"model must be a DistributedDataParallel, not {type(model).__name__}")
    model.register_comm_hook(_Buckets(process_group_of(model.process_group)), _Buckets.reduce)


class _Buckets:
    def __init__(self, group: HocketProcessGroup) -> None:
        self._group = group
        self._moved: dict[int, int] = {}  # index of the bucket -> address
        self._options = AllreduceOptions()
        self._options.reduceOp = dist.ReduceOp.AVG  # type: ignore[assignment]

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if self._moved.get(bucket.index()) != buffer.data_ptr():  # DDP makes its buckets anew after the first step
            self._group.communicator.symmetric_storage([buffer])
            self._moved[bucket.index()] = buffer.data_ptr()
        future: Any = self._group.allreduce([buffer], self._options).get_future()
        reduced: torch.futures.Future[torch.Tensor] = future.then(lambda done: done.value()[0])
        return reduced
