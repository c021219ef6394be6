"""Gradients in buckets: consecutive tensors of one data type, which are summed as one array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hocket.comm import Communicator
from hocket.comm.steps import Pending
from hocket.errors import ResourceExhausted
from hocket.train.engines.engine import SummingEngine, TensorSpec
from hocket.train.engines.in_order import InOrder
from hocket.train.engines.ordered_sums import check_backend, start_sum


@dataclass
class _Bucket:
    """A bucket of one step after the other.

    Args:
        tensors: numbers of its tensors.
        places: first element of each.
        buffer: all elements; None: it has one tensor, which is summed where it is.
        num_missing: number of tensors that are not there yet in this step.
    """

    tensors: list[int]
    places: list[int]
    buffer: torch.Tensor | None
    num_missing: int = 0
    work: Any = field(default=None, repr=False)


def plan_buckets(
    tensors: Sequence[TensorSpec],
    limits: Sequence[int],
    alone_nbytes: int | None = None,
    may_join: Callable[[TensorSpec], bool] = lambda tensor: True,
) -> list[list[int]]:
    """Return the tensors of each bucket: the last ones first, since the backward pass computes them first.

    Args:
        tensors: all tensors.
        limits: number of bytes at which a bucket is full, for the first ones; the last limit holds for all others.
        alone_nbytes: a tensor of so many bytes or more is a bucket of its own; None: none is.
        may_join: returns whether a tensor may share a bucket with others.

    Examples:
        >>> import torch
        >>> from hocket.train.engines.engine import TensorSpec
        >>> plan_buckets([TensorSpec(str(each), (each,), torch.float32) for each in (10, 20, 30, 40)], [100, 200])
        [[3], [2, 1], [0]]
    """
    buckets: list[list[int]] = []
    filling: dict[torch.dtype, tuple[list[int], int]] = {}
    for number in reversed(range(len(tensors))):
        dtype = tensors[number].dtype
        if not may_join(tensors[number]) or (alone_nbytes is not None and tensors[number].nbytes >= alone_nbytes):
            buckets.append([number])
            continue
        members, nbytes = filling.pop(dtype, ([], 0))
        members.append(number)
        nbytes += tensors[number].nbytes
        if nbytes >= limits[min(len(buckets), len(limits) - 1)]:
            buckets.append(members)
        else:
            filling[dtype] = members, nbytes
    buckets.extend(members for members, _ in filling.values())
    return buckets


class BucketEngine(SummingEngine):
    """Sums one bucket after the other, while the backward pass computes the next ones.

    Args:
        comm, tensors, exact, timeout_s: see `GradientEngine`.
        limits, alone_nbytes, may_join: see `plan_buckets`; a tensor that is alone by its size is not copied.
        backend, algorithm: as for `Communicator.all_reduce`.
    """

    def __init__(
        self,
        comm: Communicator,
        tensors: Sequence[TensorSpec],
        *,
        exact: bool,
        timeout_s: float,
        limits: Sequence[int],
        alone_nbytes: int | None = None,
        may_join: Callable[[TensorSpec], bool] = lambda tensor: True,
        backend: str | None = None,
        algorithm: str | None = None,
    ) -> None:
        super().__init__(comm, tensors, exact=exact, timeout_s=timeout_s)
        check_backend(comm, backend)
        self._backend = backend
        self._comm = comm.dup()
        self._algorithm = algorithm
        self._buckets: list[_Bucket] = []
        self._place: dict[int, tuple[_Bucket, int]] = {}
        for number, members in enumerate(plan_buckets(self.tensors, limits, alone_nbytes, may_join)):
            places, size = [], 0
            for each in members:
                places.append(size)
                size += self.tensors[each].numel
            is_alone = len(members) == 1 and alone_nbytes is not None
            buffer = None if is_alone else self._make(size, self.tensors[members[0]].dtype)
            bucket = _Bucket(members, places, buffer, len(members))
            self._buckets.append(bucket)
            for each in members:
                self._place[each] = bucket, number
        self._given: dict[int, torch.Tensor] = {}
        self._in_order = InOrder(list(range(len(self._buckets))), self._issue)

    def start(self, number: int, tensor: torch.Tensor) -> None:
        """See `SummingEngine.start`."""
        self._given[number] = tensor
        bucket, place = self._place[number]
        bucket.num_missing -= 1
        if not bucket.num_missing:
            self._in_order.ready(place)

    def finish(self) -> None:
        """See `SummingEngine.finish`."""
        for bucket in self._buckets:
            bucket.work.wait(timeout=self.timeout_s)
            if bucket.buffer is not None and self._comm.moves_data:
                flats = [self._given[each].view(-1) for each in bucket.tensors]
                torch._foreach_copy_(flats, self._parts(bucket, bucket.buffer))
            bucket.work = None
            bucket.num_missing = len(bucket.tensors)
        self._given.clear()
        self._in_order.reset()

    def close(self) -> None:
        """Leave the engine's communicator. Idempotent."""
        self._comm._leave(0.0)

    def _issue(self, number: int) -> None:
        bucket = self._buckets[number]
        flats = [self._given[each].view(-1) for each in bucket.tensors]
        if bucket.buffer is not None and self._comm.moves_data:
            torch._foreach_copy_(self._parts(bucket, bucket.buffer), flats)
        bucket.work = self._sum(number, flats[0] if bucket.buffer is None else bucket.buffer)

    def _sum(self, number: int, bucket: torch.Tensor) -> Pending:
        """Start to sum the bucket of a number over all ranks, in place."""
        return start_sum(
            self._comm,
            bucket,
            self.timeout_s,
            exact=self.exact,
            backend=self._backend,
            algorithm=self._algorithm,
        )

    def _parts(self, bucket: _Bucket, buffer: torch.Tensor) -> list[torch.Tensor]:
        return [
            buffer[place : place + self.tensors[each].numel]
            for each, place in zip(bucket.tensors, bucket.places, strict=True)
        ]

    def _make(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        if self._comm.num_hosts == 1:
            try:
                shared: torch.Tensor = self._comm.empty(size, dtype)
                return shared
            except ResourceExhausted:
                pass  # shared memory only makes it faster
        return torch.empty(size, dtype=dtype)
